"""The pauses of all instances of a service, exchanged through Redis."""

from collections.abc import Mapping

import structlog

from kworker.config.model import IdempotencySettings
from kworker.core.pauses import PauseOrders
from kworker.instance.pause_file import PauseFile, decode_order, encode
from kworker.worker.quarantine.shared_suspects import Storage

_LOG = structlog.get_logger()
_EVERY_S = 1.0


class SharedPauses:
    """Copies orders to pause or resume topics: from this instance's file to Redis, and back.

    For each topic, the newest order of any instance counts. In a worker, the claims thread owns
    this object, since only that thread talks to Redis. All other threads read the file, and so it
    does not matter to them whether Redis answers. `kworker pause` and `kworker resume` make an
    object of their own.
    """

    def __init__(self, storage: Storage, file: PauseFile) -> None:
        self._storage = storage
        self._file = file
        self._exchange_at = 0.0
        self._problem = ""
        self.asked = False  # once Redis has been asked, even if in vain; read by the poll thread

    @property
    def due_at(self) -> float:
        """The time of the next exchange with Redis, in monotonic seconds."""
        return self._exchange_at

    def turn(self, now: float) -> None:
        """Copies orders to pause or resume topics between Redis and the file, if it is time.

        Makes up to two calls to Redis. Raises `Unreachable` if a call fails.
        """
        if now < self._exchange_at:
            return
        try:
            self.exchange()
            self._problem = ""
        except OSError as error:
            self._report(str(error))
        finally:
            self.asked = True
        self._exchange_at = now + _EVERY_S

    def exchange(self) -> PauseOrders:
        """Writes the newest order (to pause or resume) for each topic to both Redis and the file.

        Returns these orders. Makes up to two calls to Redis. Raises `Unreachable` if a call fails,
        and OSError if the file cannot be read or written.
        """
        stored = _read(self._storage.get())
        newest = self._file.add(stored)
        news = {topic: order for topic, order in newest.items() if stored.get(topic) != order}
        if news:
            self._storage.put({topic: encode(order) for topic, order in news.items()})
        return newest

    def end(self) -> None:
        """Does nothing: orders to pause or resume that Redis does not have yet stay in the file."""

    def close(self) -> None:
        """Closes the connection to Redis."""
        self._storage.close()

    def _report(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            _LOG.warning(
                "`kworker pause` or `kworker resume` was typed on another host, but cannot be"
                " written to this host's state_dir, so it has no effect here yet; next try in"
                f" {_EVERY_S:g} s",
                error=problem,
            )


def make_shared_pauses(name: str, chosen: IdempotencySettings, file: PauseFile) -> SharedPauses:
    """Makes the pauses that all instances of the service `name` share.

    Does not connect yet. Raises ValueError for an invalid URL.
    """
    from kworker.clients.redis import RedisTexts  # megabytes, for those who use it

    # With the name, for services may share a prefix, so that they know each other's events.
    return SharedPauses(RedisTexts(chosen.redis, kind=f"pauses:{name}", prefix=chosen.prefix), file)


def _read(stored: Mapping[str, str]) -> PauseOrders:
    """Returns the orders to pause or resume in `stored`, without those that are unreadable."""
    found = ((topic, decode_order(text)) for topic, text in stored.items())
    return {topic: order for topic, order in found if order is not None}
