"""Stands in for `python -m kworker.spark`: tells progress, ends when told, fails as the test wants.

`spark.json` beside the configuration says how: `exit`, `deaf`, `reason`.
"""

import json
import os
import signal
import sys
from pathlib import Path


def main() -> int:
    folder = Path(sys.argv[2]).parent
    wanted = json.loads((folder / "spark.json").read_text())
    with (folder / "spark.births").open("a") as births:
        births.write(f"{os.getpid()} {os.environ['KWORKER_PARENT_PID']}\n")
    if "exit" in wanted:
        return int(wanted["exit"])
    if wanted.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    table = {"name": "t", "batch": 3, "rows": 12, "behind": 0, "state": "running", "reason": ""}
    progress = {"state": "running", "pid": os.getpid(), "updated": 0, "reason": ""}
    (folder / "spark").mkdir(exist_ok=True)
    draft = folder / "spark" / "draft"
    draft.write_text(json.dumps({**progress, **wanted, "tables": [table]}))
    draft.rename(folder / "spark" / "progress.json")
    signal.pause()
    while wanted.get("deaf"):
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
