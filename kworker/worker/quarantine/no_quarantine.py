"""The quarantine of a process that has none, such as a replay."""

from collections.abc import Collection, Iterable

from kworker.core.record import Partition, Record


class NoQuarantine:
    """Stands in for a `Quarantine`: suspects run in the pool like all other records."""

    has_suspects = False
    count = 0
    problem = ""

    def refresh(self, now: float, *, force: bool = False) -> None:
        """Does nothing: there is no journal."""

    def is_suspect(self, record: Record) -> bool:  # noqa: ARG002 - of any record
        return False

    def settled(self, records: Iterable[Record]) -> None:
        """Does nothing."""

    def add(self, records: Iterable[Record]) -> None:
        """Is never called, since no record is a suspect."""

    def turn(self, now: float) -> list[Record]:  # noqa: ARG002 - at any time
        return []

    def withdraw(self, going: Collection[Partition]) -> list[Record]:  # noqa: ARG002 - of any
        return []

    def abandon(self) -> list[Record]:
        return []

    def close(self, partition: Partition) -> list[Record]:  # noqa: ARG002 - of any
        return []
