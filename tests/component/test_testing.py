"""`kworker.testing`: a service in memory does with records what a real one does, and at once."""

import asyncio
import logging
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from kworker import BatchFailed, Message, Reject, Result, Retry, Snooze, Unavailable, batch
from kworker.clients.memory.redis import MemoryRedisClaims
from kworker.errors import ConfigError
from kworker.testing import message, run

HOURS = {"retry": {"delays": ["10s", "1h"]}}
ROOT = Path(__file__).parents[2]


class Order(BaseModel):
    order_id: int


def handle(given: Message) -> Any:
    value = given.json()
    if value == "rejected":
        raise Reject("no such customer")
    if value == "bad" or (value == "late" and given.attempt < 3):
        raise Retry("busy")
    return {"value": value, "attempt": given.attempt}


@pytest.fixture
def mixed() -> list[Any]:
    rejected = message(b'"rejected"', key="k", headers={"a": "b"})
    return [{"order": 1}, rejected, b'"late"', b'"bad"']


def test_an_hour_passes_at_once(mixed: list[Any]) -> None:
    began = time.monotonic()
    report = run(handle, mixed, settings=HOURS)
    assert time.monotonic() - began < 5
    assert 3610 < report.passed_s < 3620
    assert report.values() == [
        {"value": {"order": 1}, "attempt": 1},
        {"value": "late", "attempt": 3},
    ]
    assert [(each.source.offset, each.attempt, each.wait_s) for each in report.retries] == [
        (2, 2, 10.0),
        (2, 3, 3600.0),
        (3, 2, 10.0),
        (3, 3, 3600.0),
    ]
    assert report.retries[0].error == "Retry: busy"
    dead = [(each.reason, each.attempt, each.message) for each in report.dead]
    assert dead == [("rejected", 1, "no such customer"), ("exhausted", 3, "busy")]
    assert (report.dead[0].key, report.dead[0].headers) == (b"k", [("a", b"b")])
    assert report.committed == {("test", 0): 4}


def test_results_have_their_topic_key_and_headers() -> None:
    def two(_given: Message) -> list[Result]:
        return [Result({"n": 1}, key=b"a", headers=[("h", b"1")]), Result(None, topic="other")]

    report = run(two, ["x"], settings={"delivery": {"topics": ["other"]}})
    first, second = report.results
    assert (first.topic, first.key, first.json(), first.headers) == (
        "test.results",
        b"a",
        {"n": 1},
        [("h", b"1")],
    )
    assert (second.topic, second.value, second.source.place) == ("other", None, ("test", 0, 0))


def test_records_of_several_topics_and_partitions_are_run() -> None:
    seen = []

    def note(given: Message) -> None:
        seen.append((given.topic, given.partition, given.offset, given.value))

    records = [message(n, topic=f"t{n % 2}", partition=n % 3) for n in range(12)]
    report = run(note, records)
    assert len(seen) == 12
    assert report.committed == {(f"t{t}", p): 2 for t in range(2) for p in range(3)}


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_both_guarantees_give_the_same(mixed: list[Any], guarantee: str) -> None:
    report = run(handle, mixed, settings={**HOURS, "delivery": {"guarantee": guarantee}})
    assert [value["value"] for value in report.values()] == [{"order": 1}, "late"]
    assert [each.reason for each in report.dead] == ["rejected", "exhausted"]


def test_a_key_waits_in_memory_where_retries_are_held() -> None:
    order = []

    def first_fails(given: Message) -> None:
        order.append((given.value, given.attempt))
        if given.value == b"1" and given.attempt == 1:
            raise Retry("busy")

    held = {"retry": {"mode": "hold", "delays": ["1h"]}}
    report = run(first_fails, [message("1", key="k"), message("2", key="k")], settings=held)
    assert order == [(b"1", 1), (b"1", 2), (b"2", 1)]
    assert report.retries == []
    assert report.passed_s > 3600


def test_what_is_unavailable_is_probed_until_it_is_back() -> None:
    runs = []

    def down_at_first(given: Message) -> dict[str, int]:
        runs.append(given.offset)
        if len(runs) <= 5:
            raise Unavailable("billing")
        return {"n": given.json()}

    report = run(down_at_first, [1, 2, 3])
    assert sorted(value["n"] for value in report.values()) == [1, 2, 3]
    assert 10 < report.passed_s < 120


def test_an_event_that_comes_again_is_skipped() -> None:
    runs = []
    settings = {"idempotency": {"redis": "redis://nowhere", "key": "header:event"}}
    records = [message(n, headers={"event": str(n % 2)}) for n in range(6)]
    report = run(lambda given: runs.append(given.offset), records, settings=settings)
    assert len(runs) == 2
    assert report.committed == {("test", 0): 6}


def test_snoozing_counts_no_attempt() -> None:
    attempts = []

    def snooze_twice(given: Message) -> None:
        attempts.append(given.attempt)
        if len(attempts) < 3:
            raise Snooze("1h")

    report = run(snooze_twice, ["x"], settings=HOURS)
    assert attempts == [1, 1, 1]
    assert [each.wait_s for each in report.retries] == [3600.0, 3600.0]


def test_a_result_too_large_for_its_topic_is_a_dead_letter() -> None:
    report = run(lambda _given: b"x" * 2_000_000, ["1"])
    assert [letter.reason for letter in report.dead] == ["unpublishable"]


def test_a_wait_over_several_delay_topics_is_one_retry() -> None:
    def later(given: Message) -> None:
        if given.attempt == 1:
            raise Retry("busy", after="1h")

    [retry] = run(later, ["x"]).retries
    assert (retry.attempt, retry.wait_s) == (2, 3600.0)


def test_the_clock_waits_for_the_thread_that_asks_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the claims of a day would run out meanwhile."""
    exchange = MemoryRedisClaims.exchange

    def slow(self: MemoryRedisClaims, ask: Any) -> Any:
        time.sleep(0.02)
        return exchange(self, ask)

    monkeypatch.setattr(MemoryRedisClaims, "exchange", slow)
    settings = {"idempotency": {"redis": "redis://nowhere", "key": "header:event"}}
    records = [message(n, headers={"event": str(n % 3)}) for n in range(12)]
    report = run(lambda given: {"n": given.offset}, records, settings=settings)
    assert len(report.results) == 3
    assert report.passed_s < 60


def test_what_is_due_is_not_leapt_over() -> None:
    """The batch is due in a minute, and the other record in an hour."""
    seen = []

    @batch(size=10, wait="1m")
    def many(given: list[Message]) -> list[Any]:
        seen.append([each.offset for each in given])
        if len(seen) == 1:
            return [Retry("busy", after="1h"), *[None] * (len(given) - 1)]
        return [None] * len(given)

    report = run(many, range(12), settings={"retry": {"delays": ["1h"]}})
    assert seen == [list(range(10)), [10, 11], [0]]
    assert report.passed_s > 3600


def test_records_behind_a_slow_one_are_taken_back_from_its_thread() -> None:
    released = threading.Event()

    def wait_for_the_next(given: Message) -> None:
        if given.offset == 500:
            assert released.wait(10)
        if given.offset == 501:
            released.set()

    assert run(wait_for_the_next, range(600)).committed == {("test", 0): 600}


def test_settings_replace_only_what_they_name() -> None:
    old = message(1, timestamp=1)
    report = run(handle, [old], settings={"source": {"max_age": "1h"}})
    assert [letter.reason for letter in report.dead] == ["expired"]


def test_retries_are_in_the_order_of_their_records() -> None:
    def fails_once(given: Message) -> None:
        if given.attempt == 1:
            raise Retry("busy")

    report = run(fails_once, range(12), settings=HOURS)
    assert [retry.source.offset for retry in report.retries] == list(range(12))


def test_results_name_their_table() -> None:
    [result] = run(lambda _given: Result({"n": 1}, table="t"), ["x"]).results
    assert (result.table, result.json()) == ("t", {"n": 1})


# -- kinds of handlers ----------------------------------------------------------------


def test_a_model_of_the_value_is_what_the_handler_gets() -> None:
    def typed(order: Order) -> int:
        return order.order_id

    report = run(typed, [{"order_id": 7}, {"order_id": "seven"}])
    assert report.values() == [7]
    assert report.dead[0].reason == "undecodable"


def test_coroutines_run_on_their_loop() -> None:
    async def wait(given: Message) -> Any:
        await asyncio.sleep(0.001)
        return given.json()

    assert sorted(run(wait, range(50)).values()) == list(range(50))


def test_a_batch_handler_gets_batches() -> None:
    sizes = []

    @batch(size=10, wait="1h")
    def many(given: list[Message]) -> list[Any]:
        sizes.append(len(given))
        if given[0].attempt == 1 and sizes == [10]:
            raise BatchFailed(4, ValueError("the fifth"), results=list(range(4)))
        return [each.json() for each in given]

    report = run(many, range(25), settings=HOURS)
    assert len(report.results) == 25
    assert [each.source.offset for each in report.retries] == [4]
    assert max(sizes) == 10


def test_a_class_is_made_told_of_the_dead_and_closed() -> None:
    told: list[Any] = []

    class Handler:
        def __init__(self) -> None:
            told.append("made")

        def __call__(self, given: Message) -> None:
            raise Reject("no")

        def dead(self, given: Message, error: BaseException) -> None:
            told.append(str(error))

        def close(self) -> None:
            told.append("closed")

    run(Handler, ["x"])
    assert told == ["made", "no", "closed"]


def test_a_configuration_names_its_own_handlers(tmp_path: Path) -> None:
    (tmp_path / "given_handlers.py").write_text("def handle(message):\n    return message.json()\n")
    config = tmp_path / "kworker.toml"
    config.write_text(
        'name = "shop"\nhandler = "given_handlers:handle"\n[source]\ntopics = ["orders"]\n'
        '[kafka]\n"bootstrap.servers" = "nowhere:9092"\n[retry]\ndelays = ["1h"]\n'
    )
    report = run(None, [{"n": 1}], config=config, settings={"retry": {"delays": ["10s"]}})
    assert report.values() == [{"n": 1}]
    assert report.results[0].topic == "shop.results"
    assert report.committed == {("orders", 0): 1}
    assert not (tmp_path / ".kworker").exists()


def test_two_services_of_one_test_run_have_handlers_of_their_own(tmp_path: Path) -> None:
    """Both of the name that `kworker init` gives."""
    for name in ("one", "two", "one"):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "own_handlers.py").write_text(
            f"def handle(message):\n    return {{'n': {name!r}}}\n"
        )
        (folder / "kworker.toml").write_text(
            f'name = "{name}"\nhandler = "own_handlers:handle"\n[source]\ntopics = ["orders"]\n'
            '[kafka]\n"bootstrap.servers" = "nowhere:9092"\n'
        )
        assert run(None, ["x"], config=folder / "kworker.toml").values() == [{"n": name}]


# -- what goes wrong ------------------------------------------------------------------


def test_a_record_that_never_ends_is_named() -> None:
    def down(_given: Message) -> None:
        raise Unavailable("billing")

    with pytest.raises(AssertionError, match="test:0:0 did not end after 1h on the service's"):
        run(down, ["x"], limit_s=3600)


@pytest.fixture
def stuck() -> Iterator[Any]:
    released = threading.Event()
    yield lambda _given: released.wait(30)
    released.set()


def test_a_handler_that_does_not_return_is_given_up(stuck: Any) -> None:
    with pytest.raises(AssertionError, match=r"test:0:0 did not end after 0\.2 s"):
        run(stuck, ["x"], timeout_s=0.2)


def test_a_wrong_handler_or_configuration_is_refused() -> None:
    with pytest.raises(ConfigError, match="has two parameters, _one and _other"):
        run(lambda _one, _other: None, ["x"])
    with pytest.raises(ConfigError, match=r"retry\.delay: unknown key"):
        run(handle, ["x"], settings={"retry": {"delay": ["1s"]}})


def test_a_record_in_a_delay_topic_is_named_by_its_source() -> None:
    def asleep(_given: Message) -> None:
        raise Snooze("100h")

    with pytest.raises(AssertionError, match="test:0:0 did not end after 10h"):
        run(asleep, ["x"], settings={"retry": {"delays": ["20h"]}}, limit_s=36_000)


def test_records_that_the_service_does_not_read_are_refused() -> None:
    with pytest.raises(AssertionError, match='does not read the topic "odrers"'):
        run(handle, [message(1, topic="odrers")], settings={"source": {"topics": ["orders"]}})
    with pytest.raises(AssertionError, match="a record has 2,000,000 bytes"):
        run(handle, [b"x" * 2_000_000])
    with pytest.raises(TypeError, match="put a single one into a list"):
        run(handle, {"order": 1})
    with pytest.raises(TypeError, match="give a handler"):
        run(None, ["x"])


def test_no_record_is_no_work() -> None:
    report = run(handle, [])
    assert (report.results, report.committed) == ([], {})


def test_what_the_manual_shows_is_true() -> None:
    manual = (ROOT / "docs" / "testing.md").read_text()
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", manual, re.DOTALL):
        exec(block, names)
    names["test_orders"]()
    names["test_one_order"]()

    def kworker_run(records: list[Any], **options: Any) -> Any:
        return run(lambda _order: None, records, **options)

    names["test_an_order_becomes_an_invoice"](kworker_run)


def _logs(given: Message) -> None:
    logging.getLogger("handlers").warning("order %s", given.text())


@batch(size=2)
def _logs_of_a_batch(given: list[Message]) -> None:
    logging.getLogger("handlers").warning("%d orders", len(given))


async def _logs_in_a_thread(given: Message) -> None:
    await asyncio.to_thread(_logs, given)


@pytest.mark.parametrize("handler", [_logs, _logs_in_a_thread])
def test_a_handlers_line_names_its_record(handler: Any, caplog: pytest.LogCaptureFixture) -> None:
    """As in the service: a thread that copies the context has the record, too."""
    run(handler, [message(b"1", partition=3), message(b"2", partition=4)])
    named = {line.getMessage(): getattr(line, "kworker", None) for line in caplog.records}
    assert named["order 1"] == {"record": "test:3:0", "attempt": 1}
    assert named["order 2"] == {"record": "test:4:0", "attempt": 1}


def test_a_batchs_line_names_its_first_and_count(caplog: pytest.LogCaptureFixture) -> None:
    run(_logs_of_a_batch, [message(b"1", key="a"), message(b"2", key="b")])
    named = {line.getMessage(): getattr(line, "kworker", None) for line in caplog.records}
    assert named["2 orders"] == {"record": "test:0:0", "batch": 2}
