"""Results left out of a table and saved in its checkpoint, as the transform fails on them."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from kworker.spark.checkpoints.checked_files import Damaged
from kworker.spark.checkpoints.checkpoint import Positions
from kworker.spark.checkpoints.folders import Folder

_FOLDER = "aside"
_TRIES = f"{_FOLDER}/tries.json"
_FILE = re.compile(_FOLDER + r"/(?P<batch>\d+)-\d+-\d+-(?P<count>\d+)\.jsonl")


@dataclass(frozen=True, slots=True)
class FailingResult:
    """A result on which the transform fails: its offset in the results topic, and the error."""

    partition: int
    offset: int
    source: str  # the header kworker-source
    key: str | None  # as text, or in base64; so is the value
    value: str | None
    reason: str


class SetAside(NamedTuple):
    """The results that were left out of the table because its transform fails on them.

    `number` counts all these results; `recent` only has the results of the latest batches.
    """

    number: int
    recent: list[FailingResult]


def read_set_aside(folder: Folder, since: int) -> SetAside:
    """Reads the results that were left out of the table because its transform fails on them.

    All are counted, but only the results of batch `since` and later are returned. Raises Damaged if
    a file with such a result is unreadable.
    """
    count = 0
    recent: list[FailingResult] = []
    for name in folder.walk(_FOLDER):
        if found := _FILE.fullmatch(name):
            count += int(found["count"])
            if int(found["batch"]) >= since:
                recent += _read(folder, name)
    return SetAside(count, recent)


def _read(folder: Folder, name: str) -> list[FailingResult]:
    try:
        lines = (folder.read(name) or b"").split(b"\n")
        return [FailingResult(**json.loads(line)) for line in lines if line]
    except (ValueError, TypeError) as error:
        path = f"{folder}/{name}"
        raise Damaged(
            f"{path} is damaged ({error}): remove it, the job makes it again", ""
        ) from error


def write_set_aside(folder: Folder, batch: int, failing: Sequence[FailingResult]) -> str:
    """Saves the failing results of a batch in a new file of the checkpoint; returns its path."""
    first = failing[0]
    name = f"{_FOLDER}/{batch:09d}-{first.partition}-{first.offset}-{len(failing)}.jsonl"
    lines = "".join(f"{json.dumps(asdict(each))}\n" for each in failing)
    folder.write(name, lines.encode())
    return f"{folder}/{name}"


def count_try(folder: Folder, batch: int) -> int:
    """Adds 1 to the saved count of this batch's failures, and returns the new count.

    The count is saved in the checkpoint, so that the next job continues it: a job that ends by
    itself (`--once`, or `trigger = "available-now"`) gives up a table after a few failures.
    Counting begins again at 1 for another batch, and if the saved count is damaged.
    """
    try:
        last = json.loads(folder.read(_TRIES) or b"{}")
        tries = int(last["tries"]) + 1 if last["batch"] == batch else 1
    except (ValueError, TypeError, KeyError):
        tries = 1
    folder.write(_TRIES, json.dumps({"batch": batch, "tries": tries}).encode())
    return tries


def skipped_offsets(failing: Iterable[FailingResult], begin: Positions) -> dict[int, list[int]]:
    """The offsets, by partition, that a query must leave out if it continues at `begin`."""
    found: dict[int, list[int]] = {}
    for each in failing:
        if each.offset >= begin.get(each.partition, 0):
            found.setdefault(each.partition, []).append(each.offset)
    return found


def is_among(offsets: Mapping[int, Sequence[int]]) -> str:
    """SQL that is true for the Kafka records at these offsets."""
    each = (
        f"(partition = {partition} AND offset IN ({', '.join(map(str, numbers))}))"
        for partition, numbers in sorted(offsets.items())
    )
    return " OR ".join(each) or "false"
