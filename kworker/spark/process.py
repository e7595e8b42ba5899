"""The Spark job as a process: its signals, its title, its log and its exit code."""

import logging
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from setproctitle import setproctitle

from kworker import log
from kworker.config import toml_file
from kworker.errors import ExitCode, KworkerError
from kworker.spark.job import Job
from kworker.spark.stop import StopRequest, end_with_parent


def run(config: Path | None, *, once: bool) -> NoReturn:
    """Runs the job in this process, and exits the process when the job ends.

    With `once`, the job ends when the tables have all results. Otherwise it runs until a stop is
    requested or an error ends it.
    """
    code: int = ExitCode.FAILURE
    try:
        code = _run(config, once=once)
    except BaseException:  # noqa: BLE001 - the top of a process
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    # Skips the interpreter's shutdown: a client's thread may still call back into it.
    os._exit(code)


def _run(config: Path | None, *, once: bool) -> int:
    stop = StopRequest()
    stop.listen()
    if not end_with_parent(os.environ):
        return ExitCode.FAILURE
    setproctitle("kworker: spark")
    try:
        settings = toml_file.load(config)
        log.configure(settings.log)
        quieten_py4j()
        Job(settings, stop, once=once).run()
    except KworkerError as error:
        for line in str(error).splitlines():
            print(f"kworker: {line}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return ExitCode.OK  # while pyspark had the signal
    return ExitCode.OK


def quieten_py4j() -> None:
    """Silences the log of py4j, the bridge to the JVM."""
    # It logs each call there and back.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    # An exception of a batch is the query's exception, too, which is logged in one line.
    logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)
    # It logs on the root logger when it releases an object after the JVM has gone.
    logging.getLogger().addFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"
