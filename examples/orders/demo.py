"""`make demo`: plays the scene within a deadline, and ends every process that it leaves behind.

This outer process starts one program, `scene.py`. As a subreaper it becomes the parent of every
orphan, so it finds every process that still runs at the end, daemons included, among its
children.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

DEADLINE_S = 480.0
CLEAN_UP_S = 60.0  # time for the scene to stop its programs
_PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    # Ctrl-C reaches the scene, too, which cleans up; this process must outlive it.
    signal.signal(signal.SIGINT, lambda *_: None)
    scene = subprocess.Popen([sys.executable, str(Path(__file__).with_name("scene.py"))])
    code = _wait(scene.pid)
    left = _stop_what_is_left()
    for description in left:
        print(f"demo: this was still running and has been stopped: {description}", flush=True)
    return code or (1 if left else 0)


def _wait(scene: int) -> int:
    """Waits for the scene and returns its exit code. Reaps every orphan meanwhile, as init does."""
    started = time.monotonic()
    measures = [(DEADLINE_S, signal.SIGTERM), (DEADLINE_S + CLEAN_UP_S, signal.SIGKILL)]
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == scene:
            return abs(os.waitstatus_to_exitcode(status))
        if not pid:
            time.sleep(0.02)
        if measures and time.monotonic() - started > measures[0][0]:
            limit, number = measures.pop(0)
            print(f"demo: not done after {limit:.0f} s; sending {number.name}", flush=True)
            os.kill(scene, number)


def _stop_what_is_left() -> list[str]:
    left = psutil.Process().children(recursive=True)
    running, described = [], []
    for process in left:
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                what = f"{process.pid} {' '.join(process.cmdline())[:150]}"
                process.terminate()
                running.append(process)
                described.append(what)
        except psutil.NoSuchProcess:
            continue  # it ended meanwhile
    _, stubborn = psutil.wait_procs(running, timeout=10)
    for process in stubborn:
        process.kill()
    psutil.wait_procs(left, timeout=10)
    return described


if __name__ == "__main__":
    sys.exit(main())
