"""Traces of a real service, as a collector of OpenTelemetry receives them, and without one."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import kafka
from tests.support.otlp_receiver import OtlpReceiver, ReceivedSpan, otlp_receiver
from tests.support.service import Service, service

Topic = Callable[..., str]

TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"traceparent=00-{TRACE_ID}-{PARENT_ID}-01"
SETTINGS: dict[str, dict[str, Any]] = {
    "tracing": {"enabled": True},
    "workers": {"processes": 1, "drain_timeout": "5s"},
    "retry": {"delays": ["500ms"]},
}
HANDLERS = """
import os
import signal
from pathlib import Path

from opentelemetry import trace

from kworker import Reject

HERE = Path(__file__).parent
TRACER = trace.get_tracer("handlers")

def handle(message):
    if message.text() == "killer" and not (HERE / "killed").exists():
        (HERE / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    with TRACER.start_as_current_span("inner"):
        if message.text() == "bad" and not (HERE / "mended").exists():
            raise Reject("no such customer")
        if message.text() != "bad" and message.attempt == 1:
            raise ValueError("busy")
    return {"attempt": message.attempt}
"""
BRIEF = """
def handle(message):
    return {"n": message.offset}
"""


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    with otlp_receiver() as made:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        yield made


@pytest.fixture
def live(tmp_path: Path, bootstrap: str, topic: Topic, receiver: OtlpReceiver) -> Iterator[Service]:
    """A traced service of one source partition, which is running."""
    source = topic("traced", partitions=1)
    folder = tmp_path / "service"
    with service(folder, bootstrap, [source], handlers=HANDLERS, settings=SETTINGS) as made:
        made.serve()
        yield made


def typed(of: Service, *words: str) -> None:
    done = of.command(*words)
    assert done.returncode == 0, done.stderr


def published(of: Service, topic: str, count: int) -> list[Any]:
    """The trace id and span id in each record's header, once there are so many."""
    of.until(lambda: len(kafka.messages(of.bootstrap, topic)) >= count, f"{count} of {topic}")
    found = [dict(each.headers() or ()) for each in kafka.messages(of.bootstrap, topic)]
    return [headers["traceparent"][:52] for headers in found]


def runs(of: Service, receiver: OtlpReceiver, topic: str, count: int) -> list[ReceivedSpan]:
    """The spans of the runs of a topic's records, by attempt, once so many have come."""
    of.until(lambda: len(receiver.named(f"process {topic}")) >= count, f"{count} spans")
    found = receiver.named(f"process {topic}")
    assert len(found) == count
    return sorted(found, key=lambda span: span.attributes["kworker.attempt"])


def test_one_trace_from_the_source_to_the_result(live: Service, receiver: OtlpReceiver) -> None:
    typed(live, "send", "order", "--header", TRACEPARENT)
    failed, again = runs(live, receiver, live.topics[0], 2)
    assert {span.trace_id for span in receiver.spans} == {TRACE_ID}
    assert (failed.parent_id, again.parent_id) == (PARENT_ID, failed.span_id)
    assert (failed.failed, again.failed) == (True, False)
    assert failed.attributes["error.type"] == "ValueError"
    assert "busy" not in str(failed)
    assert published(live, f"{live.name}.retry.500ms", 1) == [failed.traceparent]
    assert published(live, live.results, 1) == [again.traceparent]
    inner = {span.parent_id for span in receiver.named("inner")}
    assert inner == {failed.span_id, again.span_id}
    assert failed.attributes["messaging.kafka.offset"] == 0
    assert failed.attributes["messaging.consumer.group.name"] == live.name
    named = [failed.resource[name] for name in ("service.name", "service.instance.id")]
    assert named == [live.name, "here:0"]
    assert receiver.headers[0]["authorization"] == "Bearer abc"
    live.ends_well()
    log = [json.loads(line) for line in live.said().splitlines() if line.startswith("{")]
    [warned] = [line for line in log if line["event"].startswith("handler failed")]
    assert warned["trace_id"] == TRACE_ID


def test_a_redriven_dead_letter_goes_on_with_its_trace(
    live: Service, receiver: OtlpReceiver
) -> None:
    typed(live, "send", "bad", "--header", TRACEPARENT)
    [rejected] = runs(live, receiver, live.topics[0], 1)
    assert published(live, f"{live.name}.dead", 1) == [rejected.traceparent]
    (live.folder / "mended").touch()
    typed(live, "dead", "redrive")
    assert published(live, f"{live.name}.requeue", 1) == [rejected.traceparent]
    spans = runs(live, receiver, live.topics[0], 2)
    [mended] = [span for span in spans if not span.failed]
    assert (mended.trace_id, mended.parent_id) == (TRACE_ID, rejected.span_id)
    assert published(live, live.results, 1) == [mended.traceparent]
    live.ends_well()


def test_a_suspects_run_is_part_of_its_trace(live: Service, receiver: OtlpReceiver) -> None:
    """Its span is made in the isolated process, and its retry by the worker."""
    typed(live, "send", "killer", "--header", TRACEPARENT)
    failed, again = runs(live, receiver, live.topics[0], 2)
    assert failed.resource["service.instance.id"] == "here:isolated"
    assert (failed.parent_id, again.parent_id) == (PARENT_ID, failed.span_id)
    assert published(live, live.results, 1) == [again.traceparent]
    live.ends_well()


@contextmanager
def nobody_listens() -> Iterator[int]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@contextmanager
def nobody_answers() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listening:
        yield listening.getsockname()[1]


@pytest.mark.parametrize("absent", [nobody_listens, nobody_answers])
def test_without_a_collector_the_service_works_and_drains(
    tmp_path: Path,
    bootstrap: str,
    topic: Topic,
    monkeypatch: pytest.MonkeyPatch,
    absent: Callable[[], Any],
) -> None:
    """Spans beyond the queue are dropped; it is told at warning, and not for each span."""
    source = topic("untraced", partitions=1)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
    folder = tmp_path / "service"
    with absent() as port:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        with service(folder, bootstrap, [source], handlers=BRIEF, settings=SETTINGS) as live:
            live.serve()
            records = kafka.numbered(5_000, keys=100)
            kafka.Writer(bootstrap, tmp_path / "written").write(source, records)
            live.caught_up()
            live.until(lambda: "opentelemetry" in live.said(), "the SDK's warning")
            live.ends_well()  # else the supervisor kills the worker, 10 s after drain_timeout
            log = [json.loads(line) for line in live.said().splitlines() if line.startswith("{")]
    assert not [line for line in log if line["level"] == "error"]
    told = [line for line in log if str(line.get("logger", "")).startswith("opentelemetry")]
    assert 1 <= len(told) <= 20
    assert {line["level"] for line in told} == {"warning"}
    assert [line for line in log if "the last spans could not be sent" in line["event"]]
