"""The HTTP server of the console: uvicorn, with limits for connections, headers and idle time."""

import asyncio
import socket
from typing import Any, ClassVar

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from kworker.console.guard import AccessGuard
from kworker.console.source import StatusSource

CONNECTIONS_MAX = 256
HEAD_BYTES_MAX = 16 << 10
IDLE_S = 5.0  # a connection that has completed no response for so long is closed


async def serve(app: AccessGuard, source: StatusSource, listener: socket.socket) -> None:
    """Serves `app` on the listening socket until SIGTERM."""
    config = uvicorn.Config(
        app,
        http=_Connection,
        ws="none",
        loop="asyncio",
        lifespan="off",
        proxy_headers=False,  # nothing here asks where a request comes from
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=int(IDLE_S),
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
    )
    sampling = asyncio.create_task(source.sample())
    try:
        await uvicorn.Server(config).serve(sockets=[listener])
    finally:
        sampling.cancel()


class _Connection(H11Protocol):
    """One connection, which is closed if its client is too slow, or sends nothing.

    uvicorn itself waits for ever for a first request, and for a client that does not read. When
    there are too many connections, an old one is closed. A limit set in uvicorn would instead
    answer the new connection with 503, which a probe takes for the service's own answer.
    """

    _open: ClassVar[dict["_Connection", None]] = {}  # the oldest first
    _completed = 0  # responses
    _seen = -1

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self._open) >= CONNECTIONS_MAX:
            idle = (each for each in self._open if not each._is_answering)
            next(idle, next(iter(self._open))).close()
        self._open[self] = None
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.pop(self, None)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._completed += 1
        super().on_response_complete()

    def close(self) -> None:
        """Closes the connection at once, whatever it still has to send."""
        self._open.pop(self, None)
        self.transport.abort()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _look(self) -> None:
        if self.transport.is_closing():
            return
        if self._completed == self._seen:
            self.close()
            return
        self._seen = self._completed
        self.loop.call_later(IDLE_S, self._look)
