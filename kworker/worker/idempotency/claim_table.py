"""The claims of one worker: events that it holds, requests to Redis, and their answers."""

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

BUSY_S = (0.2, 1.0)  # an event that another holds is claimed again after a time between these
OWN_BUSY_S = (0.05, 0.2)  # an event that this worker holds
_WITHOUT_ID_EVERY_S = 60.0


@dataclass(slots=True)
class ClaimBatch:
    """The records to claim, and updates of earlier claims, sent together to the claims thread."""

    asked: list[Record] = field(default_factory=list)
    settled: list[Record] = field(default_factory=list)
    released: list[Record] = field(default_factory=list)
    cancelled: list[Record] = field(default_factory=list)
    handed_over: list[tuple[Record, str]] = field(default_factory=list)  # with packed results


@dataclass(slots=True)
class ClaimAnswers:
    """The claims thread's answers to the records of one or more `ClaimBatch`es."""

    batches: int = 0
    run: list[Record] = field(default_factory=list)
    duplicates: list[Record] = field(default_factory=list)  # done before: to be settled
    busy: list[tuple[Record, float]] = field(default_factory=list)  # claim again after seconds
    with_kept_outcome: list[Record] = field(default_factory=list)  # of an earlier run
    rejected: list[tuple[Record, str]] = field(default_factory=list)  # without an id, and why
    unprotected: int = 0  # number of those to run without Redis


class ClaimTable:
    """The events that this worker has claimed or is claiming, by event id.

    Owned by the claims thread, which also owns each record that waits for the answer to its claim.
    While one record holds the claim of an event, no other record of that event runs on this worker,
    not even the same record delivered again after a rebalance.
    """

    def __init__(
        self,
        *,
        owner: str,
        id_of: IdOf,
        missing: Literal["process", "reject"],
        gone: Callable[[str], bool],
        outbox: RedisOutbox,
        liveness: OwnerLiveness,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`gone` returns True if the owner of a claim, a worker process, has certainly ended."""
        self._owner = owner
        self._id_of = id_of
        self._missing = missing
        self._gone = gone
        self._outbox = outbox
        self._liveness = liveness
        self._clock = clock
        self._held: dict[str, Record] = {}
        self._asks: dict[str, Record] = {}
        self._takeovers: dict[str, Takeover] = {}
        self._known_gone: dict[str, bool] = {}  # within one answer
        self._answers = ClaimAnswers()
        self._without_id = 0
        self._log_at = 0.0

    @property
    def is_asking(self) -> bool:
        """True if a request for a claim has no answer from Redis yet."""
        return bool(self._asks)

    def enter(self, batch: ClaimBatch) -> None:
        """Ends the earlier claims that a batch names, and requests a claim for each new record.

        A record for which Redis need not be asked is answered at once.
        """
        self._note_updates(batch)
        self._sort(batch.asked)
        self._answers.batches += 1

    def fill(self, ask: Exchange) -> None:
        """Adds all requested claims to `ask`, the next call to Redis."""
        ask.ids = ids = list(self._asks)
        ask.sources = [source_of(record) for record in self._asks.values()]
        known = self._takeovers
        ask.takeovers = (
            {i: known[id_] for i, id_ in enumerate(ids) if id_ in known} if known else {}
        )

    def apply(self, ask: Exchange, answer: Answer) -> None:
        """Grants or refuses the requested claims, as Redis's `answer` to the call `ask` says.

        A claim that a dead owner holds is requested again, as a takeover.
        """
        asks, again = self._asks, {}
        self._takeovers, self._known_gone = {}, {}
        for index, state in answer.refused.items():
            id_ = ask.ids[index]
            record = asks.pop(id_)
            if not self._answer(id_, record, state):
                again[id_] = record
        self._grant(asks)
        self._asks = again

    def grant_unprotected(self) -> None:
        """Lets every waiting record run, although Redis has not granted its claim.

        A record does not run if its event is known to be done.
        """
        done = self._outbox.done
        for id_ in [id_ for id_ in self._asks if id_ in done]:
            self._duplicate(self._asks.pop(id_))
        self._answers.unprotected += len(self._asks)
        self._grant(self._asks)
        self._asks = {}

    def postpone(self) -> None:
        """Answers each open request for a claim with "busy": the claim is requested again later."""
        for record in self._asks.values():
            self._answers.busy.append((record, random.uniform(*BUSY_S)))
        self._asks = {}

    def close(self, unread: Iterable[ClaimAnswers]) -> None:
        """Releases all requested claims, and those granted in `unread` answers.

        Outcomes that Redis keeps for these claims are not deleted: another worker can use them.
        """
        self._held.update(self._asks)
        for record in self._asks.values():
            self._release(record, ended_too=False)
        self._asks = {}
        for answers in unread:
            for record in [*answers.run, *answers.with_kept_outcome]:
                self._release(record, ended_too=False)

    def answers(self) -> ClaimAnswers | None:
        """Returns the answers to all `ClaimBatch`es entered since answers were last returned.

        Returns None if no batch was entered since, or while a record still waits for its claim.
        """
        if self._asks or not self._answers.batches:
            return None
        answers, self._answers = self._answers, ClaimAnswers()
        return answers

    # -- updates ----------------------------------------------------------------------

    def _note_updates(self, batch: ClaimBatch) -> None:
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
            if event := self._drop(record):
                self._outbox.add_outcome(HandOver(event, self._claim(record), outcome))

    def _release(self, record: Record, *, ended_too: bool) -> None:
        if event := self._drop(record):
            self._outbox.add_release(Release(event, self._claim(record), ended_too))

    def _drop(self, record: Record) -> str | None:
        """Removes a record's claim. Returns the id of its event; None if there was no claim."""
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
                    self._answer_without_id(record, str(error))
                    continue
                except Exception as error:  # noqa: BLE001 - a record must not end the claims thread
                    why = f"its id cannot be made: {Failure.of(error)}"
                    self._answer_without_id(record, why)
                    continue
            if not id_ or held.get(id_) is record:
                answers.run.append(record)
            elif id_ in held or id_ in asks:
                answers.busy.append((record, random.uniform(*OWN_BUSY_S)))
            else:
                asks[id_] = record

    def _answer_without_id(self, record: Record, why: str) -> None:
        record.claim = ""  # no event to update
        if self._missing == "reject":
            self._answers.rejected.append((record, why))
            return
        self._answers.run.append(record)
        self._without_id += 1
        if (now := self._clock()) >= self._log_at:
            self._log_at = now + _WITHOUT_ID_EVERY_S
            _LOG.warning(
                "record has no idempotency key; running it without duplicate protection",
                record="{}:{}:{}".format(*record.source.place),
                why=why,
                so_far=self._without_id,
            )

    def _grant(self, asks: dict[str, Record]) -> None:
        self._held.update(asks)
        self._answers.run.extend(asks.values())

    def _duplicate(self, record: Record) -> None:
        record.claim = ""  # its event is done
        self._answers.duplicates.append(record)

    def _answer(self, id_: str, record: Record, state: ClaimState) -> bool:
        """Sorts a record into the answers for the poll thread, after Redis refused its claim.

        Returns False if the claim must be requested again. Then the record is in no answer yet.
        """
        match state:
            case ClaimDone():
                self._duplicate(record)
            case KeptOutcome(source, outcome) if source == source_of(record):
                record.outcome = unpack(outcome)
                self._held[id_] = record
                self._answers.with_kept_outcome.append(record)
            case Claimed() | KeptOutcome() if self._take_over(id_, state):
                return False
            case Claimed() | KeptOutcome():
                self._answers.busy.append((record, random.uniform(*BUSY_S)))
            case _:
                assert_never(state)
        return True

    def _take_over(self, id_: str, held: Claimed | KeptOutcome) -> bool:
        """Prepares a claim for takeover if its owner is known to be dead; if not, returns False."""
        owner = held.owner
        if not owner:
            return False  # an outcome that nobody has taken up yet
        if owner not in self._known_gone:
            # Its own, and not in this table: granted by a call whose answer was lost.
            self._known_gone[owner] = owner == self._owner or self._gone(owner)
        if self._known_gone[owner]:
            # Updates that it left in the folder go to Redis before anything is taken over.
            if not self._outbox.load_of(owner):
                self._takeovers[id_] = Takeover(held, None, gone=True)
            return True
        if self._liveness.is_dead(owner):
            self._takeovers[id_] = Takeover(held, self._liveness.beat(owner))
            return True
        self._liveness.watch(owner, self._clock())
        return False


def source_of(record: Record) -> str:
    """Returns the position of a record in its source topic, as `topic/partition/offset`."""
    if record.envelope is None:
        return f"{record.partition.topic}/{record.partition.number}/{record.offset}"
    topic, partition, offset = record.envelope.source.place
    return f"{topic}/{partition}/{offset}"
