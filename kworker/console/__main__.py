"""`python -m kworker.console`: serves the console. The supervisor starts it; people need not."""

import argparse
import asyncio
import logging
import os
import socket
from pathlib import Path

from setproctitle import setproctitle

from kworker import log
from kworker.config.model import LogSettings
from kworker.instance.proc import raise_oom_score

_NICENESS = 10  # the records come first, also while this process imports its libraries
_OOM_SCORE_MORE = 200  # where memory is short, this process goes before any worker


def main() -> None:
    """Serves until SIGTERM, which the kernel sends when the supervisor ends."""
    arguments = _arguments()
    os.nice(_NICENESS)
    raise_oom_score(_OOM_SCORE_MORE)
    setproctitle(f"kworker: console [{arguments.name}]")
    log.configure(LogSettings(format=arguments.log_format, level=arguments.log_level))
    log.identify(process="console")
    # It warns of each request that is no HTTP, and anybody who can connect may send such.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)

    from kworker.console.app import make_app
    from kworker.console.guard import AccessGuard
    from kworker.console.server import serve
    from kworker.console.source import StatusSource
    from kworker.core.address import Address
    from kworker.instance.state_folder import StateFolder
    from kworker.supervisor.children.console_child import TOKEN_VARIABLE
    from kworker.supervisor.control.client import ControlClient

    token = os.environ.pop(TOKEN_VARIABLE, "")
    client = ControlClient(arguments.name, StateFolder(arguments.state_dir))
    source = StatusSource(lambda: client.request("status"))
    guard = AccessGuard(make_app(source), Address.parse(arguments.listen), token)
    with socket.socket(fileno=arguments.fd) as listener:
        asyncio.run(serve(guard, source, listener))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kworker.console", description=__doc__)
    parser.add_argument("--name", required=True, help="the service's name")
    parser.add_argument("--state-dir", required=True, type=Path, help="where its control socket is")
    parser.add_argument("--listen", required=True, help="the address that --fd listens on")
    parser.add_argument("--fd", required=True, type=int, help="the listening socket")
    parser.add_argument("--log-format", default="auto")
    parser.add_argument("--log-level", default="info")
    return parser.parse_args()


if __name__ == "__main__":
    main()
