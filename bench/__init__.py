"""Benchmarks beside hand-written consumers: `make bench`, `make profile`, `make backpressure`."""
