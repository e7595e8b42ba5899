"""The transactions of the delay process: records and the positions behind them, together."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import structlog

from kworker.clients.errors import KafkaRequestError
from kworker.core.message import PartitionId
from kworker.core.offset_map import Committed
from kworker.core.outcome import Output

_LOG = structlog.get_logger()


class ForwarderTransactor(Protocol):
    """What the forwarder needs of `KafkaTransactor` or its twin."""

    def open(self) -> None: ...
    def begin(self) -> None: ...
    def poll(self) -> None: ...
    def produce(self, output: Output) -> None: ...
    def send_positions(
        self, positions: Mapping[PartitionId, Committed], group_metadata: Any
    ) -> None: ...
    def commit(self) -> None: ...
    def close(self) -> None: ...


class Forwarder:
    """One transaction after the other; after any doubt, with another producer.

    Owned by the delay process's thread, which must read the committed positions back
    whenever `open` had something to do: they alone tell what was forwarded.
    """

    def __init__(
        self, make: Callable[[], ForwarderTransactor], beat: Callable[[], object] = lambda: None
    ) -> None:
        """`beat` says that this thread lives, between two calls that may each take their time."""
        self._make = make
        self._beat = beat
        self._transactor: ForwarderTransactor | None = None
        self._opened = False

    @property
    def opened(self) -> bool:
        """Whether there is a producer, and no doubt about what it has done."""
        return self._opened

    def open(self) -> None:
        """Another producer, if need be; what the last one left open is aborted. Raises Refused."""
        if self._opened:
            return
        if self._transactor is None:
            self._transactor = self._make()
        try:
            self._transactor.open()
        except KafkaRequestError as refused:
            if not refused.retriable:
                self._discard()
            raise
        self._opened = True

    def forward(
        self,
        outputs: Sequence[Output],
        positions: Mapping[PartitionId, int],
        group_metadata: object,
    ) -> None:
        """All of it, or nothing, or nobody knows: then raises Refused, and is not open."""
        assert self._transactor is not None
        try:
            self._transactor.begin()
            for output in outputs:
                self._transactor.produce(output)
            self._beat()
            held = {at: Committed(position) for at, position in positions.items()}
            self._transactor.send_positions(held, group_metadata)
            self._beat()
            self._transactor.commit()
        except KafkaRequestError as refused:
            _LOG.warning("forwarding in doubt; the positions are read back", error=str(refused))
            self._discard()
            raise

    def serve(self) -> None:
        """Hears what the producer has to tell, which piles up in it otherwise."""
        if self._transactor is not None:
            self._transactor.poll()

    def close(self) -> None:
        """Nothing is forwarded any more."""
        self._discard()

    def _discard(self) -> None:
        if self._transactor is not None:
            self._transactor.close()
        self._transactor = None
        self._opened = False
