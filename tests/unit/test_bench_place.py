"""The servers of a benchmark, which end with it."""

import signal
import subprocess
import sys
from pathlib import Path

from bench.place import ROOT

BENCHMARK = """
import sys, time
from pathlib import Path
from bench import place

place.ROOT = Path(sys.argv[1])
place._sandbox = lambda verb, *_: print(verb, flush=True)
with place.servers("run"):
    time.sleep(60)
"""


def test_a_terminated_benchmark_stops_its_servers(tmp_path: Path) -> None:
    """They, and the services on them, would go on without it."""
    command = [sys.executable, "-c", BENCHMARK, str(tmp_path)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as benchmark:
        assert benchmark.stdout
        begun = [benchmark.stdout.readline() for _ in range(2)]
        benchmark.terminate()
        assert begun == ["down\n", "up\n"]
        assert benchmark.stdout.read() == "down\n"
    assert benchmark.returncode == -signal.SIGINT
