"""The handlers of the benchmark, in a worker that counts its own stages."""

import os
from pathlib import Path

from bench import stages
from bench.handlers import decoded, no_op, result, wait, wait_async

__all__ = ["decoded", "no_op", "result", "wait", "wait_async"]

stages.install(Path(os.environ["BENCH_STAGES"]))
