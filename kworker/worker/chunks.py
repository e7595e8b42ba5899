"""The chunks that the handlers' pool has, and the decision whether records come in chunks."""

from typing import NamedTuple

from kworker.core.chunk import Chunk, ChunkPart, ChunkRow
from kworker.core.flow import Flow
from kworker.core.lanes import Lanes
from kworker.core.record import Record
from kworker.core.record_groups import all_plain
from kworker.worker.retries.decider import RetryDecider

_LEAST = 10_000  # records in a row that ended well, before the next ones come in chunks


class Collected(NamedTuple):
    """The ends and the records of chunks, since they were last looked at.

    `parts` have ended well. `records` were made of chunks that are broken up: the pool
    has them, or has returned them.
    """

    parts: list[ChunkPart]
    records: list[Record]


class Chunks:
    """The chunks that were handed to the pool, and are whole. Owned by the poll thread.

    A chunk costs less than its records, as long as each ends with one plain result or with none. So
    records come in chunks once many in a row have ended like that, until one does not.
    """

    def __init__(self, lanes: Lanes, flow: Flow, decider: RetryDecider, *, allowed: bool) -> None:
        """`allowed` tells whether the pool runs chunks."""
        self._lanes = lanes
        self._flow = flow
        self._decider = decider
        self._allowed = allowed
        self._out: list[Chunk] = []
        self._in_a_row = 0

    def __len__(self) -> int:
        """The number of chunks."""
        return len(self._out)

    def add(self, row: ChunkRow) -> None:
        """Notes that the pool gets a row."""
        self._out += row.chunks

    def collect(self) -> Collected:
        """Returns what has become of the chunks; those that are over are forgotten.

        Called after records that have ended were collected, and before anything is done to these: a
        record that was made of a chunk is known from here on.
        """
        found, out = Collected([], []), []
        for chunk in self._out:
            over = chunk.is_over  # first, for the thread goes on
            if (part := chunk.take_ended()) is not None:
                found.parts.append(part)
                self._in_a_row += part.number
            if not over:
                out.append(chunk)
                continue
            if chunk.records:
                found.records.extend(chunk.records)
                self._in_a_row = 0
            self._lanes.chunk_over(chunk)
            chunk.let_go()
        self._out = out
        return found

    def end(self, parts: list[ChunkPart]) -> bool:
        """Ends the records of parts.

        Returns False, and changes nothing, if they have to be judged as single records.
        """
        if self._decider.has_circuits or not all(part.partition.open for part in parts):
            return False
        self._decider.count_succeeded(sum([part.number for part in parts]))
        self._flow.leave_parts(parts)
        return True

    def ended(self, records: list[Record]) -> None:
        """Decides whether records come in chunks, as `records` have just got a final outcome."""
        if records:
            plain = self._allowed and self._lanes.merged and all_plain(records)
            self._in_a_row = self._in_a_row + len(records) if plain else 0
        self._lanes.chunked = self._in_a_row >= _LEAST
