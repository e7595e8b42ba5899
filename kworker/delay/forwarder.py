"""The transactions of the delay process, each of forwarded records and the next positions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import structlog

from kworker.clients.errors import KafkaRequestError
from kworker.core.message import PartitionId
from kworker.core.offset_map import Committed
from kworker.core.outcome import Output

_LOG = structlog.get_logger()


class ForwarderTransactor(Protocol):
    """The methods of `KafkaTransactor` and its in-memory twin that the forwarder calls."""

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
    """Commits transactions one after another; after a failed one it needs a new producer.

    Owned by the delay process's thread. After `open` has opened a producer, that thread must
    read the committed positions: only they say which records were forwarded.
    """

    def __init__(
        self, make: Callable[[], ForwarderTransactor], beat: Callable[[], object] = lambda: None
    ) -> None:
        """`beat` writes this thread's heartbeat; it is called between requests that may block."""
        self._make = make
        self._beat = beat
        self._transactor: ForwarderTransactor | None = None
        self._opened = False

    @property
    def opened(self) -> bool:
        """True if a producer is open and no transaction is in doubt."""
        return self._opened

    def open(self) -> None:
        """Opens a producer unless one is open; aborts the open transaction of an earlier producer.

        Raises KafkaRequestError if Kafka refuses a request or does not answer.
        """
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
        """Commits records and positions in one transaction.

        If it is aborted or in doubt, closes the producer and raises KafkaRequestError.
        """
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
            _LOG.warning(
                "a transaction failed; reading the committed positions to see if it was"
                " committed after all",
                error=str(refused),
            )
            self._discard()
            raise

    def serve(self) -> None:
        """Runs the producer's waiting callbacks, which would pile up otherwise."""
        if self._transactor is not None:
            self._transactor.poll()

    def close(self) -> None:
        """Closes the producer; nothing is forwarded after that."""
        self._discard()

    def _discard(self) -> None:
        if self._transactor is not None:
            self._transactor.close()
        self._transactor = None
        self._opened = False
