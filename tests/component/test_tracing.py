"""Spans of handlers' runs, from the source record to what is published of it."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

from kworker import Message, Reject, Result, Retry, Snooze, batch
from kworker.core.headers import SOURCE
from kworker.log.running import NamingLogRecord
from tests.support.traced import (
    TRACE_ID,
    TRACEPARENT,
    Spans,
    names,
    parent_of,
    record,
    serve,
    traceparents,
)

FROM = ("traceparent", TRACEPARENT)
RUN = "process orders"


def fails_first(message: Message) -> dict[str, int]:
    if message.attempt == 1:
        raise ValueError("the card 4111 is refused")
    return {"attempt": message.attempt}


@pytest.fixture
def spans() -> Spans:
    return Spans()


def test_one_trace_leads_from_the_source_to_the_result(tmp_path: Path, spans: Spans) -> None:
    done = serve(tmp_path, fails_first, [record(b"{}", FROM)], spans)
    failed, again = spans.named(RUN)
    assert [parent_of(failed), parent_of(again)] == [TRACEPARENT, names(failed)]
    assert traceparents(done.retries) == [names(failed)]
    assert traceparents(done.results) == [names(again)]
    assert [span.attributes["kworker.attempt"] for span in (failed, again)] == [1, 2]


def test_a_run_held_in_memory_follows_the_one_that_failed(tmp_path: Path, spans: Spans) -> None:
    held = {"retry": {"mode": "hold", "delays": ["1m"]}}
    done = serve(tmp_path, fails_first, [record(b"{}", FROM)], spans, held)
    failed, again = spans.named(RUN)
    assert [parent_of(failed), parent_of(again)] == [TRACEPARENT, names(failed)]
    assert traceparents(done.results) == [names(again)]


def test_a_dead_letter_names_the_last_run_and_keeps_the_rest(tmp_path: Path, spans: Spans) -> None:
    """The other headers are the record's own, byte for byte and in their order."""

    def rejects(_message: Message) -> None:
        raise Reject("no such customer")

    user = [("a", b"1"), FROM, ("kworker-x", b"\xff"), ("a", None)]
    done = serve(tmp_path, rejects, [record(b"{}", *user)], spans)
    [run], [dead] = spans.named(RUN), done.dead
    kept = (dead.headers() or [])[: len(user)]
    assert kept == [
        ("a", b"1"),
        ("traceparent", names(run)),
        ("kworker-in-x", b"\xff"),
        ("a", None),
    ]


def test_a_dead_letter_after_retries_names_the_last_run(tmp_path: Path, spans: Spans) -> None:
    """Of a record that comes again, the envelope has the headers that are carried on."""

    def fails(_message: Message) -> None:
        raise ValueError

    done = serve(tmp_path, fails, [record(b"{}", FROM)], spans)
    first, last = spans.named(RUN)
    assert traceparents(done.retries) == [names(first)]
    assert traceparents(done.dead) == [names(last)]


def test_a_span_has_the_attributes_of_the_conventions(tmp_path: Path, spans: Spans) -> None:
    serve(tmp_path, lambda _: None, [record(None, FROM, key=b"k", at=("orders", 2, 0))], spans)
    [run] = spans.named(RUN)
    assert run.kind is SpanKind.CONSUMER
    assert dict(run.attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "test",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "2",
        "messaging.kafka.offset": 0,
        "messaging.kafka.message.key": "k",
        "messaging.kafka.message.tombstone": True,
        "kworker.attempt": 1,
    }


@pytest.mark.parametrize("key", [None, b"\xff\xfe", b"k" * 257])
def test_a_key_that_is_no_short_text_is_left_out(
    tmp_path: Path, spans: Spans, key: bytes | None
) -> None:
    serve(tmp_path, lambda _: None, [record(key=key)], spans)
    [run] = spans.named(RUN)
    assert "messaging.kafka.message.key" not in (run.attributes or {})


def test_a_failed_run_names_the_type_and_not_the_text(tmp_path: Path, spans: Spans) -> None:
    """The text may quote the record; the log line of the same trace has it."""
    serve(tmp_path, fails_first, [record(b"{}", FROM)], spans)
    failed, again = spans.named(RUN)
    assert (failed.status.status_code, failed.attributes["error.type"]) == (
        StatusCode.ERROR,
        "ValueError",
    )
    assert "4111" not in failed.to_json()
    assert again.status.status_code is StatusCode.UNSET
    assert "error.type" not in (again.attributes or {})


def test_a_snoozed_run_has_not_failed(tmp_path: Path, spans: Spans) -> None:
    runs = []

    def snoozes(message: Message) -> None:
        runs.append(message.attempt)
        if len(runs) == 1:
            raise Snooze("1m")

    serve(tmp_path, snoozes, [record()], spans)
    assert [span.status.status_code for span in spans.named(RUN)] == [StatusCode.UNSET] * 2


def test_an_unfit_result_fails_its_span(tmp_path: Path, spans: Spans) -> None:
    done = serve(tmp_path, lambda _: {"n": object()}, [record()], spans)
    [run], [dead] = spans.named(RUN), done.dead
    assert run.status.status_code is StatusCode.ERROR
    assert traceparents([dead]) == [names(run)]


def plain(spans: Spans) -> Callable[..., Any]:
    def handle(_message: Message) -> None:
        with spans.tracer.start_as_current_span("inner"):
            pass

    return handle


def tasks(spans: Spans) -> Callable[..., Any]:
    async def inner() -> None:
        await asyncio.sleep(0)  # the others begin
        await asyncio.to_thread(plain(spans), None)

    async def handle(_message: Message) -> None:
        await asyncio.create_task(inner())

    return handle


@pytest.mark.parametrize("kind", [plain, tasks])
def test_spans_of_the_handler_are_children_of_its_run(
    tmp_path: Path, spans: Spans, kind: Callable[[Spans], Callable[..., Any]]
) -> None:
    """Records run beside each other, on threads that are used again and on one loop."""
    given = [record(b"%d" % n, at=("orders", n % 3, 0)) for n in range(60)]
    serve(tmp_path, kind(spans), given, spans)
    runs = {names(run) for run in spans.named(RUN)}
    assert len(runs) == 60
    assert {parent_of(inner) for inner in spans.named("inner")} == runs
    assert not get_current_span().get_span_context().is_valid


@pytest.mark.parametrize("is_async", [False, True])
def test_a_batch_is_one_span_with_a_link_to_each_record(
    tmp_path: Path, spans: Spans, is_async: bool
) -> None:
    @batch(size=3, wait="1h")
    def many(messages: list[Message]) -> list[Any]:
        with spans.tracer.start_as_current_span("inner"):
            return [{"n": 1}, None, Reject("bad")]

    @batch(size=3, wait="1h")
    async def many_on_a_loop(messages: list[Message]) -> list[Any]:
        await asyncio.sleep(0)
        return many(messages)

    other = b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01"
    given = [record(b"1", FROM), record(b"2"), record(b"3", ("traceparent", other))]
    done = serve(tmp_path, many_on_a_loop if is_async else many, given, spans)
    [call], [inner] = spans.named(RUN), spans.named("inner")
    assert (parent_of(call), parent_of(inner)) == (None, names(call))
    assert [f"{link.context.trace_id:032x}" for link in call.links] == [TRACE_ID, "1" * 32]
    assert call.attributes["messaging.batch.message_count"] == 3
    assert "messaging.kafka.offset" not in call.attributes
    assert traceparents([*done.results, *done.dead]) == [names(call)] * 2
    assert call.attributes["error.type"] == "kworker.core.outcome.Reject"


def test_each_call_of_a_batch_that_raises_has_its_span(tmp_path: Path, spans: Spans) -> None:
    @batch(size=2, wait="1h")
    def many(messages: list[Message]) -> list[None]:
        if len(messages) > 1:
            raise ValueError
        return [None]

    serve(tmp_path, many, [record(b"1", FROM), record(b"2", FROM)], spans)
    whole, *halves = spans.named(RUN)
    assert [len(span.links) for span in (whole, *halves)] == [1, 1, 1]
    assert {half.links[0].context.span_id for half in halves} == {whole.context.span_id}


def test_the_handler_and_its_log_lines_are_told_the_run(
    tmp_path: Path, spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    """What a handler hands on by itself is then a child of its run; so it is without a parent."""
    seen = []

    def handle(message: Message) -> None:
        seen.append(message)
        logging.getLogger("handlers").warning("here")

    made_by = logging.getLogRecordFactory()
    logging.setLogRecordFactory(NamingLogRecord)
    try:
        serve(tmp_path, handle, [record()], spans)
    finally:
        logging.setLogRecordFactory(made_by)
    [run] = spans.named(RUN)
    assert traceparents(seen) == [names(run)]
    assert run.parent is None
    [line] = [each for each in caplog.records if each.name == "handlers"]
    assert line.kworker["trace_id"] == f"{run.context.trace_id:032x}"


@pytest.mark.parametrize("is_async", [False, True])
def test_spans_of_dead_are_children_of_the_run_that_failed(
    tmp_path: Path, spans: Spans, is_async: bool
) -> None:
    class Plain:
        def __call__(self, _message: Message) -> None:
            raise Reject("bad")

        def dead(self, _message: Message, _error: BaseException) -> None:
            with spans.tracer.start_as_current_span("told"):
                pass

    class OnALoop(Plain):
        async def __call__(self, _message: Message) -> None:
            raise Reject("bad")

    done = serve(tmp_path, OnALoop if is_async else Plain, [record(b"{}", FROM)], spans)
    [run], [told] = spans.named(RUN), spans.named("told")
    assert parent_of(told) == names(run)
    assert traceparents(done.dead) == [names(run)]


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"\xff" * 55,
        b"00-" + b"0" * 32 + b"-" + b"1" * 16 + b"-01",
        b"00-" + b"1" * 9_000,
    ],
)
def test_a_header_that_names_no_span_begins_a_trace(
    tmp_path: Path, spans: Spans, value: bytes | None
) -> None:
    """Strangers write the headers of source records."""
    strange = [("traceparent", value), ("tracestate", b"\xff=,=")]
    done = serve(tmp_path, lambda _: {"n": 1}, [record(b"{}", *strange)], spans)
    [run] = spans.named(RUN)
    assert run.parent is None
    assert traceparents(done.results) == [names(run)]


def test_of_several_headers_the_first_counts(tmp_path: Path, spans: Spans) -> None:
    """As for the log's `trace_id`; what is published has one."""
    other = ("traceparent", b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01")
    done = serve(tmp_path, lambda _: {"n": 1}, [record(b"{}", FROM, other)], spans)
    [run] = spans.named(RUN)
    assert parent_of(run) == TRACEPARENT
    assert traceparents(done.results) == [names(run)]


def test_a_sampler_that_drops_spans_does_not_break_the_trace(tmp_path: Path) -> None:
    """Who reads the results must see that nobody records this trace."""
    spans = Spans(ParentBased(ALWAYS_OFF))
    unsampled = TRACEPARENT[:-1] + b"0"
    given = [record(b"{}", ("traceparent", unsampled))]
    done = serve(tmp_path, lambda _: {"n": 1}, given, spans)
    [header] = traceparents(done.results)
    assert header is not None
    assert spans.named(RUN) == []
    assert (header[:35], header[-3:]) == (TRACEPARENT[:35], b"-00")
    assert header != unsampled


def test_a_disabled_sdk_leaves_every_header_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    given = [record(b"1", FROM), record(b"2")]
    done = serve(tmp_path, lambda _: {"n": 1}, given, Spans())
    assert [[name for name, _ in each.headers() or ()] for each in done.results] == [
        [SOURCE, "traceparent"],
        [SOURCE],
    ]
    assert traceparents(done.results[:1]) == [TRACEPARENT]


def test_what_a_handler_raises_is_what_the_pool_gets(tmp_path: Path, spans: Spans) -> None:
    """A context manager that is a generator may swallow StopIteration, or replace it."""

    def raises(message: Message) -> None:
        raise (StopIteration, GeneratorExit, SystemExit, Retry)[int(message.value or b"0")]("x")

    once = {"retry": {"delays": ["1m"], "never": ["BaseException"]}}
    done = serve(tmp_path, raises, [record(b"%d" % n) for n in range(4)], spans, once)
    types = [dict(each.headers() or ())["kworker-exception"] for each in done.dead]
    assert sorted(types, key=str) == [
        b"GeneratorExit",
        b"StopIteration",
        b"SystemExit",
        b"kworker.core.outcome.Retry",
    ]
    assert len(spans.named(RUN)) == 4


def test_without_tracing_headers_are_carried_unchanged(tmp_path: Path) -> None:
    def twice(message: Message) -> Result:
        fails_first(message)
        return Result({"n": 1})

    done = serve(tmp_path, twice, [record(b"{}", FROM), record(b"{}", at=("orders", 1, 0))], None)
    assert traceparents(done.retries[:1]) == traceparents(done.results[:1]) == [TRACEPARENT]
    names_of = [name for each in (*done.retries, *done.results) for name, _ in each.headers() or ()]
    assert names_of.count("traceparent") == 2
