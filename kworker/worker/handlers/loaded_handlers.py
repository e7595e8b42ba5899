"""The handlers of one process, found by the topic of a record."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kworker.message import Message
from kworker.worker.handlers.signature import Batching, Call

OnDead = Callable[[Message, BaseException], Any]


@dataclass(frozen=True)
class Handler:
    """A handler that the configuration names: a function, or an instance of a class."""

    name: str
    call: Call  # of a batch handler: a batch of one
    is_async: bool
    close: Callable[[], None] | None = None
    dead: OnDead | None = (
        None  # called before a dead letter; of an async handler, it may return an awaitable
    )
    batching: Batching | None = None


class Handlers:
    """The handlers of one process, each found by the source topic of its records."""

    def __init__(self, default: Handler | None, routes: Mapping[str, Handler]) -> None:
        self._default = default
        self._routes = routes
        self._all = [*routes.values(), *([default] if default else [])]

    @property
    def is_async(self) -> bool:
        return self._all[0].is_async

    @property
    def only(self) -> Call | None:
        """The function that calls the only handler; None if several are chosen by topic."""
        return self._all[0].call if len(self._all) == 1 else None

    @property
    def batchings(self) -> set[Batching]:
        """The settings of all batch handlers."""
        return {handler.batching for handler in self._all if handler.batching}

    @property
    def has_on_dead(self) -> bool:
        """True if a handler has a `dead` method, to be called before a dead letter is written."""
        return any(handler.dead for handler in self._all)

    def of(self, topic: str) -> Call:
        """Returns the function that calls a topic's handler. Raises KeyError if there is none."""
        handler = self._routes.get(topic, self._default)
        if handler is None:
            raise KeyError(topic)
        return handler.call

    def batching_of(self, topic: str) -> Batching | None:
        """Returns the batch settings of a topic's handler; None if it takes single records."""
        handler = self._routes.get(topic, self._default)
        return handler.batching if handler else None

    def on_dead_of(self, topic: str) -> OnDead | None:
        """Returns the `dead` method of a source topic's handler.

        Returns None if the handler has no such method, or if the topic has no handler. A topic
        without a handler occurs if another program wrote a record to the requeue topic.
        """
        handler = self._routes.get(topic, self._default)
        return handler.dead if handler else None

    def close(self) -> None:
        """Closes every handler, at the end of a drain. Raises whatever their `close` raises."""
        for close in {handler.close for handler in self._all if handler.close}:
            close()
