"""`start --daemon` over the driver: `python -m tests.support.daemon_driver FOLDER TIMEOUT_S`."""

import sys
from pathlib import Path

from kworker.supervisor.daemon import launch
from tests.support.supervisor_driver import main

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    result = launch(lambda fd: main(folder, fd), folder / "kworker.log", float(sys.argv[2]))
    print(result)
