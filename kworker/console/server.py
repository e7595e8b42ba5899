"""The HTTP server of the console: uvicorn, with bounds on what one client may hold."""

import asyncio
import socket
from typing import Any

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
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS_MAX,
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

    uvicorn itself waits for ever for a first request, and for a client that does not read.
    """

    _completed = 0  # responses
    _seen = -1

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._look()

    def on_response_complete(self) -> None:
        self._completed += 1
        super().on_response_complete()

    def _look(self) -> None:
        if self.transport.is_closing():
            return
        if self._completed == self._seen:
            self.transport.abort()
            return
        self._seen = self._completed
        self.loop.call_later(IDLE_S, self._look)
