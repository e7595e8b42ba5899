"""The console of a service under test, as a browser, a probe or Prometheus asks it."""

import http.client
import json
from typing import Any, NamedTuple

import psutil

from tests.support.bare_service import Service
from tests.support.waiting import eventually


class Answer(NamedTuple):
    """What came back; status 0 when nobody listens."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


NOBODY = Answer(0, {}, "")


class ConsoleClient:
    """Asks for paths at one port, each over a connection of its own."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.port = port
        self.host = host

    def get(self, path: str, method: str = "GET", **headers: str) -> Answer:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=20)
        try:
            connection.request(method, path, headers=headers)
            came = connection.getresponse()
            text = came.read().decode()
        except (ConnectionError, http.client.BadStatusLine):
            return NOBODY
        finally:
            connection.close()
        return Answer(came.status, {k.lower(): v for k, v in came.getheaders()}, text)

    def comes(self, path: str, status: int = 200) -> Answer:
        """Waits until the path is answered with this status."""
        last = [NOBODY]

        def answered() -> bool:
            last[0] = self.get(path)
            return last[0].status == status

        eventually(answered, what=f"{path} is answered with {status}", every_s=0.1)
        return last[0]


def console_process(service: Service) -> psutil.Process | None:
    """The child of the supervisor that is titled so."""
    for child in psutil.Process(service.pid).children():
        try:
            if child.cmdline()[:1] == ["kworker: console [orders]"]:
                return child
        except psutil.NoSuchProcess:
            continue
    return None
