"""A stand-in for the quarantine, for a process without suspects, such as a replay."""

from collections.abc import Collection, Iterable

from kworker.core.record import Partition, Record


class NoQuarantine:
    """Stands in for a `Quarantine`, for example in a replay. All records run in the pool."""

    isolates_any = False
    count = 0
    problem = ""

    def refresh(self, now: float, *, force: bool = False) -> None:
        """Does nothing, because there is no crash journal."""

    def isolate_all(self, seconds: float) -> None:
        """Does nothing. Only a worker is ever told to isolate all records."""

    def isolates(self, record: Record) -> bool:  # noqa: ARG002 - any record
        return False

    def is_suspect(self, record: Record) -> bool:  # noqa: ARG002 - of any record
        return False

    def settled(self, records: Iterable[Record]) -> None:
        """Does nothing, because no record is a suspect."""

    def add(self, records: Iterable[Record]) -> None:
        """Does nothing. It is never called, because no record is a suspect."""

    def turn(self, now: float) -> list[Record]:  # noqa: ARG002 - at any time
        return []

    def withdraw(self, going: Collection[Partition]) -> list[Record]:  # noqa: ARG002 - of any
        return []

    def abandon(self) -> list[Record]:
        return []

    def close(self, partition: Partition) -> list[Record]:  # noqa: ARG002 - of any
        return []
