"""What a worker has claimed, what it asks for, and what becomes of each record that asked."""

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, assert_never

import structlog

from kworker.core.claim import (
    Answer,
    ClaimDone,
    Claimed,
    ClaimState,
    Exchange,
    HandOver,
    KeptOutcome,
    Release,
    Takeover,
    unpack,
)
from kworker.core.event_id import IdOf, NoId
from kworker.core.failure import Failure
from kworker.core.record import Record
from kworker.worker.idempotency.liveness import OwnerLiveness
from kworker.worker.idempotency.redis_outbox import RedisOutbox

_LOG = structlog.get_logger()

BUSY_S = (0.2, 1.0)  # an event in other hands is asked for again after a time between these
OWN_BUSY_S = (0.05, 0.2)  # one in this worker's own
_WITHOUT_ID_EVERY_S = 60.0


@dataclass(slots=True)
class ClaimBatch:
    """What the poll thread hands over at once: marks, and records to claim."""

    asked: list[Record] = field(default_factory=list)
    settled: list[Record] = field(default_factory=list)
    released: list[Record] = field(default_factory=list)
    cancelled: list[Record] = field(default_factory=list)
    handed_over: list[tuple[Record, str]] = field(default_factory=list)  # with the packed outcome


@dataclass(slots=True)
class ClaimAnswers:
    """What became of the records of so many batches."""

    batches: int = 0
    run: list[Record] = field(default_factory=list)
    duplicates: list[Record] = field(default_factory=list)  # done elsewhere: settle them
    busy: list[tuple[Record, float]] = field(default_factory=list)  # ask again after seconds
    with_kept_outcome: list[Record] = field(
        default_factory=list
    )  # with the outcome of an earlier run
    rejected: list[tuple[Record, str]] = field(default_factory=list)  # no id: reject them
    unprotected: int = 0  # of those to run: without Redis


class ClaimTable:
    """Who holds what, as far as this worker is concerned.

    Owned by the claims thread, as is a record between its batch and its answer. While a
    record is held, no other of its event runs here, be it the same one delivered again
    to a later epoch.
    """

    def __init__(
        self,
        *,
        owner: str,
        id_of: IdOf,
        missing: Literal["process", "reject"],
        gone: Callable[[str], bool],
        outbox: RedisOutbox,
        silence: OwnerLiveness,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`gone` tells which owners surely have ended."""
        self._owner = owner
        self._id_of = id_of
        self._missing = missing
        self._gone = gone
        self._outbox = outbox
        self._silence = silence
        self._clock = clock
        self._held: dict[str, Record] = {}
        self._asks: dict[str, Record] = {}
        self._takeovers: dict[str, Takeover] = {}
        self._known_gone: dict[str, bool] = {}  # within one answer
        self._answers = ClaimAnswers()
        self._without_id = 0
        self._tell_at = 0.0

    @property
    def asking(self) -> bool:
        """Records wait for Redis."""
        return bool(self._asks)

    def enter(self, batch: ClaimBatch) -> None:
        """Notes its marks, and sorts its records: to be asked for, or answered at once."""
        self._mark(batch)
        self._sort(batch.asked)
        self._answers.batches += 1

    def fill(self, ask: Exchange) -> None:
        """Adds all that is asked for."""
        ask.ids = ids = list(self._asks)
        ask.sources = [source_of(record) for record in self._asks.values()]
        known = self._takeovers
        ask.takeovers = (
            {i: known[id_] for i, id_ in enumerate(ids) if id_ in known} if known else {}
        )

    def take_in(self, ask: Exchange, answer: Answer) -> None:
        """Grants what was granted; what a dead owner holds stays asked for, as a takeover."""
        asks, again = self._asks, {}
        self._takeovers, self._known_gone = {}, {}
        for index, state in answer.refused.items():
            id_ = ask.ids[index]
            record = asks.pop(id_)
            if self._ask_again(id_, record, state):
                again[id_] = record
        self._grant(asks)
        self._asks = again

    def grant_unprotected(self) -> None:
        """Redis is away, and nobody is to wait for it: what is known here is heeded."""
        done = self._outbox.done
        for id_ in [id_ for id_ in self._asks if id_ in done]:
            self._duplicate(self._asks.pop(id_))
        self._answers.unprotected += len(self._asks)
        self._grant(self._asks)
        self._asks = {}

    def postpone(self) -> None:
        """What is still asked for is asked for again later."""
        for record in self._asks.values():
            self._answers.busy.append((record, random.uniform(*BUSY_S)))
        self._asks = {}

    def close(self, unheard: Iterable[ClaimAnswers]) -> None:
        """Nothing runs any more: what was asked for is let go, and what was granted unheard."""
        self._held.update(self._asks)
        for record in self._asks.values():
            self._release(record, ended_too=False)
        self._asks = {}
        for answers in unheard:
            for record in answers.run:
                self._release(record, ended_too=False)

    def answers(self) -> ClaimAnswers | None:
        """Those of all batches so far; None while Redis is being asked, or without a batch."""
        if self._asks or not self._answers.batches:
            return None
        answers, self._answers = self._answers, ClaimAnswers()
        return answers

    # -- marks ------------------------------------------------------------------------

    def _mark(self, batch: ClaimBatch) -> None:
        held = self._held
        done: list[str] = []
        for record in batch.settled:
            if id_ := record.claim:
                done.append(id_)
                if held.get(id_) is record:
                    del held[id_]
        self._outbox.add_done(done)
        for record in batch.released:
            self._release(record, ended_too=True)
        for record in batch.cancelled:
            self._release(record, ended_too=False)
        for record, outcome in batch.handed_over:
            if event := self._let_go(record):
                self._outbox.add_ended(HandOver(event, self._claim(record), outcome))

    def _release(self, record: Record, *, ended_too: bool) -> None:
        if event := self._let_go(record):
            self._outbox.add_released(Release(event, self._claim(record), ended_too))

    def _let_go(self, record: Record) -> str | None:
        """The id, if it was this record that held its event."""
        id_ = record.claim
        if not id_ or self._held.get(id_) is not record:
            return None
        del self._held[id_]
        return id_

    def _claim(self, record: Record) -> Claimed:
        return Claimed(self._owner, source_of(record))

    # -- records ----------------------------------------------------------------------

    def _sort(self, records: list[Record]) -> None:
        held, asks, answers, id_of = self._held, self._asks, self._answers, self._id_of
        for record in records:
            if (id_ := record.claim) is None:
                try:
                    record.claim = id_ = id_of(record)
                except NoId as error:
                    self._nameless(record, str(error))
                    continue
                except Exception as error:  # noqa: BLE001 - a record must not end the claims thread
                    self._nameless(record, f"its id cannot be made: {Failure.of(error)}")
                    continue
            if not id_ or held.get(id_) is record:
                answers.run.append(record)
            elif id_ in held or id_ in asks:
                answers.busy.append((record, random.uniform(*OWN_BUSY_S)))
            else:
                asks[id_] = record

    def _nameless(self, record: Record, why: str) -> None:
        record.claim = ""  # nothing to mark
        if self._missing == "reject":
            self._answers.rejected.append((record, why))
            return
        self._answers.run.append(record)
        self._without_id += 1
        if (now := self._clock()) >= self._tell_at:
            self._tell_at = now + _WITHOUT_ID_EVERY_S
            _LOG.warning(
                "a record without idempotency key runs, whether it did before or not",
                record=source_of(record),
                why=why,
                so_far=self._without_id,
            )

    def _grant(self, asks: dict[str, Record]) -> None:
        self._held.update(asks)
        self._answers.run.extend(asks.values())

    def _duplicate(self, record: Record) -> None:
        record.claim = ""  # nothing to mark
        self._answers.duplicates.append(record)

    def _ask_again(self, id_: str, record: Record, state: ClaimState) -> bool:
        """Whether to ask again at once; else the record has its answer."""
        match state:
            case ClaimDone():
                self._duplicate(record)
            case Claimed() if self._dead(id_, state):
                return True
            case KeptOutcome(source, outcome) if source == source_of(record):
                record.outcome = unpack(outcome)
                self._held[id_] = record
                self._answers.with_kept_outcome.append(record)
            case Claimed() | KeptOutcome():
                self._answers.busy.append((record, random.uniform(*BUSY_S)))
            case _:
                assert_never(state)
        return False

    def _dead(self, id_: str, held: Claimed) -> bool:
        """Whether nobody lives who holds it: then it is to be asked for as a takeover."""
        owner = held.owner
        if owner not in self._known_gone:
            # Its own, and not in the book: granted by a call whose answer was lost.
            self._known_gone[owner] = owner == self._owner or self._gone(owner)
        if self._known_gone[owner]:
            # What it left in the folder is told before anything is taken over.
            if not self._outbox.load_of(owner):
                self._takeovers[id_] = Takeover(held, None, gone=True)
            return True
        if self._silence.dead(owner):
            self._takeovers[id_] = Takeover(held, self._silence.beat(owner))
            return True
        self._silence.meet(owner, self._clock())
        return False


def source_of(record: Record) -> str:
    """The source position, which a record keeps from topic to topic."""
    if record.envelope is None:
        return f"{record.partition.topic}/{record.partition.number}/{record.offset}"
    topic, partition, offset = record.envelope.source.place
    return f"{topic}/{partition}/{offset}"
