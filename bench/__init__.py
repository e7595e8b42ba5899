"""kworker beside what people write instead: `python -m bench.run`, `python -m bench.memory`."""
