"""Results that were set aside, since a table's transform fails on them: kept, and left out."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from kworker.spark.checkpoint import Damaged, Positions
from kworker.spark.folders import Folder

_FOLDER = "aside"


@dataclass(frozen=True, slots=True)
class Failing:
    """One such result: its place in the results topic, what it is, and what was raised."""

    partition: int
    offset: int
    source: str  # the header kworker-source
    key: str | None  # as text, or in base64, like the value
    value: str | None
    reason: str


def kept(folder: Folder) -> list[Failing]:
    """All that a checkpoint has set aside. Raises Damaged for a file that is not whole."""
    found = []
    for name in folder.walk(_FOLDER):
        if not name.endswith(".jsonl"):
            continue
        try:
            lines = (folder.read(name) or b"").splitlines()
            found += [Failing(**json.loads(line)) for line in lines]
        except (ValueError, TypeError) as error:
            raise Damaged(f"{folder}/{name}: {error}", begin="") from error
    return found


def keep(folder: Folder, batch: int, failing: Iterable[Failing]) -> str:
    """Adds those of a batch to a checkpoint; the name of the file."""
    name = f"{_FOLDER}/{batch:09d}.jsonl"
    before = folder.read(name) or b""
    lines = "".join(f"{json.dumps(asdict(each))}\n" for each in failing)
    folder.write(name, before + lines.encode())
    return f"{folder}/{name}"


def left_out(failing: Iterable[Failing], begin: Positions) -> dict[int, list[int]]:
    """The offsets of each partition that a query must leave out, which goes on from `begin`."""
    found: dict[int, list[int]] = {}
    for each in failing:
        if each.offset >= begin.get(each.partition, 0):
            found.setdefault(each.partition, []).append(each.offset)
    return found


def among(offsets: Mapping[int, Sequence[int]]) -> str:
    """Whether one of Kafka's records is one of these, as SQL."""
    each = (
        f"(partition = {partition} AND offset IN ({', '.join(map(str, numbers))}))"
        for partition, numbers in sorted(offsets.items())
    )
    return " OR ".join(each) or "false"
