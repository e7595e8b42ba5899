"""`python -m kworker.spark`: the Spark job as a process, started by exec or by a person."""

import argparse
import logging
import os
import sys

from setproctitle import setproctitle

from kworker import config_file, log
from kworker.errors import ExitCode, KworkerError
from kworker.spark.job import Job
from kworker.spark.stop import StopRequest, end_with_parent


def main() -> int:
    """Runs the job to its end; the exit code is for the supervisor."""
    stop = StopRequest()
    stop.listen()
    if not end_with_parent(os.environ):
        return ExitCode.FAILURE
    arguments = _arguments()
    setproctitle("kworker: spark")
    try:
        config = config_file.load(arguments.config)
        log.configure(config.log)
        # Tells of each call from the JVM and back.
        logging.getLogger("py4j").setLevel(logging.WARNING)
        # What a batch raised here is the query's exception, too, which is told in one line.
        logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)
        Job(config, stop, once=arguments.once).run()
    except KworkerError as error:
        for line in str(error).splitlines():
            print(f"kworker: {line}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return ExitCode.OK  # while pyspark had the signal
    return ExitCode.OK


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kworker.spark", description=__doc__)
    parser.add_argument("--config", help="kworker.toml, found as by every command")
    parser.add_argument("--once", action="store_true", help="end when all is in the tables")
    return parser.parse_args()


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # Not by way of the interpreter's end: a client's thread may still bring an answer to it.
    os._exit(code)
