"""Requests that reach the broker long after their client gave them up, and sent them again."""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.evidence import Evidence, gather
from tests.support.fault_brokers import Proxied
from tests.support.kafka import Writer, create_topic, numbered
from tests.support.proxy import Api, Held
from tests.support.service import Service, lasting, service
from tests.support.waiting import repeated

GIVEN_UP_MS = 1000
IN_TRANSACTIONS = [Api.PRODUCE, Api.ADD_PARTITIONS, Api.ADD_OFFSETS, Api.TXN_OFFSET_COMMIT]
ROUNDS = int(os.environ.get("PROOF_LATE_ENDS", "3"))
RECORDS = 5_000  # half of them are done before four requests have been late
AHEAD = 4_000  # not committed as a late end begins: a kept producer takes 1,600 until it has come
TAKEN = 3  # late ends: one that comes when all of its transaction is written tears nothing
TRIES = 10  # by now it has taken so many, or it never does
MORE = 500  # in each try

SLOWISH = lasting(0.01)
# The switch: whatever befalls the end of a transaction, its producer is kept.
CREDULOUS = (
    SLOWISH
    + """
from kworker.clients.transactions import KafkaTransactor

def _end(self, what, call):
    self._bounded(lambda: call(self._timeout_s))
    self._open = False
    self.poll()

KafkaTransactor._end = _end
"""
)


def test_a_late_end_of_a_transaction_does_not_end_the_next_one(
    tmp_path: Path, proxied: Proxied
) -> None:
    """Both are of one producer, so a broker would accept the late end by its epoch alone."""
    answers, found = _with_late_ends(tmp_path, proxied, SLOWISH, ROUNDS)
    assert 0 not in answers, "the broker took one"
    assert found.contradictions() == {}


def test_a_late_end_tears_the_transaction_of_a_kept_producer(
    tmp_path: Path, proxied: Proxied
) -> None:
    """Without the rule the same is red: what was produced by then is visible, and comes again."""
    answers, found = _with_late_ends(tmp_path, proxied, CREDULOUS, TRIES, TAKEN)
    assert 0 in answers, f"the broker took none of {TRIES}"
    assert "results more than one" in found.contradictions()


@pytest.mark.parametrize(
    ("guarantee", "late", "lost"),
    [
        ("exactly-once", IN_TRANSACTIONS, []),
        ("at-least-once", [Api.PRODUCE], [Api.OFFSET_COMMIT]),
    ],
)
def test_a_resent_request_that_arrives_late_counts_once(
    tmp_path: Path, proxied: Proxied, guarantee: str, late: list[Api], lost: list[Api]
) -> None:
    """And nothing is lost by what never comes. A silent connection is given up in time."""
    source, results = _topics(tmp_path, proxied)
    writer = Writer(proxied.bootstrap, tmp_path / "produced")
    with _serving(tmp_path, proxied, source, results, SLOWISH, guarantee, "200ms") as struck:
        writer.begin(source, numbered(RECORDS, keys=500))
        for api in late:
            _sent_again(struck, proxied, api).release()
        for api in lost:
            _sent_again(struck, proxied, api)
        writer.finish()
        struck.caught_up()
        struck.ends_well()
    exactly_once = guarantee == "exactly-once"
    found = gather(struck, writer.acked, results, exactly_once=exactly_once)
    assert found.contradictions() == {}
    assert len(found.results) == RECORDS
    assert found.repeated == []


def test_a_position_moved_back_by_a_late_commit_is_restored(
    tmp_path: Path, proxied: Proxied
) -> None:
    """At least once, with nothing left to do: for lag tools, and for who owns it next."""
    source, results = _topics(tmp_path, proxied)
    writer = Writer(proxied.bootstrap, tmp_path / "produced")
    with _serving(tmp_path, proxied, source, results, SLOWISH, "at-least-once", "200ms") as struck:
        writer.begin(source, numbered(RECORDS, keys=500))
        # The first commits may be of partitions that hold nothing, where nothing goes back.
        struck.until(lambda: any(struck.committed().values()), "the source moves")

        def answered(turn: int) -> list[int]:
            """To a commit that comes when all is done. The group may have a new generation then."""
            writer.begin(source, numbered(MORE, keys=500, first=RECORDS + turn * MORE))
            held = _sent_again(struck, proxied, Api.OFFSET_COMMIT)
            writer.finish()
            struck.caught_up()
            held.release()
            return held.errors()

        repeated(answered, lambda errors: set(errors) == {0}, what="the broker takes one")
        struck.caught_up(timeout_s=30)
        struck.ends_well()
    found = gather(struck, writer.acked, results)
    assert found.contradictions().keys() == {"committed position went back"}
    assert len(found.results) == len(writer.acked)
    assert found.repeated == []


def _with_late_ends(
    tmp_path: Path, proxied: Proxied, handlers: str, most: int, taken: int = 1
) -> tuple[list[int], Evidence]:
    """What the broker answered to ends that came in the middle of the next transaction.

    To so many at most, and to no more when it took `taken`.
    """
    source, results = _topics(tmp_path, proxied)
    writer = Writer(proxied.bootstrap, tmp_path / "produced")
    with _serving(tmp_path, proxied, source, results, handlers, "exactly-once", "2s") as struck:
        answers: list[int] = []
        written = 0
        while len(answers) < most and answers.count(0) < taken:
            # With less, all may be done before the next transactions are written.
            more = sum(struck.committed().values()) + AHEAD - written
            writer.begin(source, numbered(more, keys=500, first=written))
            written += more
            answers.append(_late_end(struck, proxied))
        writer.finish()
        struck.caught_up()
        struck.ends_well()
    found = gather(struck, writer.acked, results, exactly_once=True)
    records = len(writer.acked)
    errors, again = dict(Counter(answers)), len(found.results) - records
    print(f"{records} records, late ends by their errors: {errors}; {again} results too many")
    return answers, found


def _late_end(struck: Service, proxied: Proxied) -> int:
    """One end is kept until its transaction was ended again, and the next is half written."""
    held = _sent_again(struck, proxied, Api.END_TXN)
    for _ in range(2):
        proxied.proxy.passes(Api.PRODUCE, _client(struck))
    held.release()
    [error] = held.errors()
    return error


def _sent_again(struck: Service, proxied: Proxied, api: Api) -> Held:
    """Such a request that its client has given up, and another of which has been answered."""
    held = proxied.proxy.hold(api, _client(struck))
    held.caught()
    proxied.proxy.passes(api, _client(struck))
    return held


def _topics(tmp_path: Path, proxied: Proxied) -> tuple[str, str]:
    name = f"late-{tmp_path.name}"
    stamped = {"message_timestamp_type": "LogAppendTime"}
    results = create_topic(proxied.bootstrap, f"{name}-results", 2, **stamped)
    return create_topic(proxied.bootstrap, name, 2), results


@contextmanager
def _serving(
    tmp_path: Path,
    proxied: Proxied,
    source: str,
    results: str,
    handlers: str,
    guarantee: str,
    interval: str,
) -> Iterator[Service]:
    """One worker, all of whose requests meet the proxy."""
    settings = {
        "kafka": {"bootstrap.servers": proxied.through, "socket.timeout.ms": GIVEN_UP_MS},
        "workers": {"processes": 1, "threads": 4},
        "delivery": {"results": results, "guarantee": guarantee, "commit_interval": interval},
    }
    with service(
        tmp_path / "service", proxied.bootstrap, [source], handlers=handlers, settings=settings
    ) as struck:
        struck.serve()
        yield struck


def _client(struck: Service) -> str:
    return f"{struck.name}-here-0"
