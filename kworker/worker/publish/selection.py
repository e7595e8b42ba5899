"""Selections of the records that wait to be written."""

from collections.abc import Collection, Iterable

from kworker.core.record import Record


def is_for(record: Record, topic: str) -> bool:
    return any(output.topic == topic for output in record.outputs)


def alone(record: Record) -> Record:
    """Unpacks a record before it waits, and returns it.

    The value of a packed record is a part of one bytes object, which has the values of many
    records. While one of these records is packed, the whole object stays in memory. An unpacked
    record has only its own value.
    """
    record.unpack()
    return record


def without(records: Iterable[Record], going: Collection[Record]) -> list[Record]:
    return [record for record in records if record not in going]
