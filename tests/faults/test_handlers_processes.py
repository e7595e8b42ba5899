"""Processes and signals in a handler's hands: copies of the worker, what is left, a deaf TERM."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.support.kafka import Writer, numbered
from tests.support.service import service
from tests.support.waiting import eventually

Topic = Callable[..., str]

RECORDS = 60
# Record 0 comes back twice, from its fork; 1 uses multiprocessing; 2 leaves processes behind.
HANDLERS = """
import json, multiprocessing, os, signal, subprocess, time
from pathlib import Path

HERE = Path(__file__).parent
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as some library would

def leave(name, *command, **options):
    with (HERE / name).open("w") as file:
        subprocess.Popen(command, stdout=file, **options)

def handle(message):
    with (HERE / "runs").open("a") as runs:
        runs.write(f"{os.getpid()} {message.partition}/{message.offset}\\n")
    match message.text():
        case "0":
            if child := os.fork():
                status = os.waitpid(child, 0)[1]
                (HERE / "forked").write_text(json.dumps([child, os.waitstatus_to_exitcode(status)]))
        case "1":
            process = multiprocessing.Process(target=time.sleep, args=(3600,))
            process.start()
            process.terminate()
            process.join(10)
            (HERE / "terminated").write_text(json.dumps(process.exitcode))
        case "2":
            leave("left", "sh", "-c", "echo $$; exec sleep 3600")
            leave("stubborn", "sh", "-c", "trap '' TERM; sleep 3600 & echo $!; wait; wait")
            leave("meant", "sh", "-c", "echo $$; exec sleep 3600", start_new_session=True)
    return message.value
"""


def test_a_workers_end_ends_its_handlers_processes(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str
) -> None:
    """One service, since each of these lives through all the others."""
    source = topic("proof", partitions=2)
    settings: dict[str, Any] = {
        "workers": {"processes": 1, "threads": 4, "drain_timeout": "20s"},
        "delivery": {"results": results},
    }
    folder = tmp_path / "service"
    with service(folder, bootstrap, [source], handlers=HANDLERS, settings=settings) as one:
        one.serve()
        writer = Writer(bootstrap, tmp_path / "produced")
        writer.write(source, numbered(RECORDS, keys=RECORDS))
        one.caught_up()
        [worker] = one.worker_pids().values()
        child, code = json.loads((folder / "forked").read_text())
        assert code == 1
        runs = [line.split() for line in (folder / "runs").read_text().splitlines()]
        assert {int(pid) for pid, _ in runs} == {worker}
        assert len({place for _, place in runs}) == len(runs) == RECORDS
        one.until(lambda: child in one.logged("forked"), "the child's end is told")
        assert json.loads((folder / "terminated").read_text()) == -signal.SIGTERM
        assert "a handler's code had replaced the worker's signal handler of SIGTERM" in one.said()
        left, stubborn, meant = (
            int((folder / name).read_text()) for name in ("left", "stubborn", "meant")
        )
        assert all(map(psutil.pid_exists, (left, stubborn, meant)))
        os.kill(worker, signal.SIGTERM)  # by hand: what the supervisor says comes another way, too
        eventually(lambda: one.worker_pids().get(0, worker) != worker, what="another worker")
        one.until(lambda: "left 3 processes behind: SIGTERM now" in one.said(), "that is told")
        eventually(lambda: not psutil.pid_exists(left), what="what was left has ended")
        eventually(lambda: not psutil.pid_exists(stubborn), what="and what would not is killed")
        assert psutil.pid_exists(meant)
        os.kill(meant, signal.SIGKILL)
        one.ends_well()
