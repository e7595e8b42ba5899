"""Benchmarks against hand-written consumers: `python -m bench.run`, `python -m bench.memory`."""
