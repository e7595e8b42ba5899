"""The verbs of the control socket: the function that answers each request."""

import re
import time
from collections.abc import Callable, Mapping

from kworker.errors import ExitCode
from kworker.supervisor.control.server import Connection, Request
from kworker.supervisor.service import Service

_SIZE = re.compile(r"([+-]?)(\d{1,4})")


def verbs(service: Service) -> Mapping[str, Callable[[Request, Connection], None]]:
    """Returns a function for each verb, which answers the requests with that verb."""

    def status(_request: Request, peer: Connection) -> None:
        peer.finish(service.status(time.monotonic()))

    def stop(request: Request, peer: Connection) -> None:
        end = service.quit if request.get("now") is True else service.drain
        service.subscribe(peer)
        end(time.monotonic())

    def reload(_request: Request, peer: Connection) -> None:
        service.reload(time.monotonic(), peer)

    def restart(_request: Request, peer: Connection) -> None:
        service.restart(time.monotonic(), peer)

    def scale(request: Request, peer: Connection) -> None:
        _scale(service, str(request.get("to")), peer)

    def dump(_request: Request, peer: Connection) -> None:
        peer.finish({"dumped": service.dump()})

    def accept_dead(_request: Request, peer: Connection) -> None:
        peer.finish({"workers": service.fleet.accept_dead()})

    table = (status, stop, reload, restart, scale, dump, accept_dead)
    return {verb.__name__: verb for verb in table}


def _scale(service: Service, to: str, peer: Connection) -> None:
    wanted = _SIZE.fullmatch(to)
    if not wanted:
        peer.refuse(f'scale: "{to}" is not a number, +1 or -1', ExitCode.USAGE)
        return
    sign, number = wanted[1], int(wanted[2])
    size = number if not sign else service.fleet.size + int(sign + wanted[2])
    if not 1 <= size <= service.fleet.size_max:
        size_max = service.fleet.size_max
        peer.refuse(f"scale: {size} is not between 1 and {size_max} workers", ExitCode.USAGE)
        return
    got = service.scale(size, time.monotonic())
    if got == size:
        peer.finish({"processes": got})
    else:
        peer.refuse("scale: only a running service can be scaled", ExitCode.FAILURE)
