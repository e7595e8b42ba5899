"""The way of spans out of a process: sent in the background, and never waited for in vain."""

import socket
import time

import pytest
from structlog.testing import capture_logs

from kworker.worker.tracing.span_export import FLUSH_S, SpanExport
from tests.support.otlp_receiver import otlp_receiver

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


def test_the_last_spans_are_sent_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with otlp_receiver() as receiver:
        monkeypatch.setenv(ENDPOINT, receiver.endpoint)
        export = SpanExport("orders", "host-1:0")
        for n in range(600):
            export.tracer.start_span(f"span {n}").end()
        with capture_logs() as logs:
            export.close()
        assert {span.name for span in receiver.spans} == {f"span {n}" for n in range(600)}
        assert logs == []


def test_a_silent_collector_holds_up_neither_spans_nor_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes connections and never answers; at the end, the SDK alone would wait for 30 s."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "300")
        monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "600")
        export = SpanExport("orders", "host-1:0")
        began = time.monotonic()
        for _ in range(1_500):  # more than the queue takes
            export.tracer.start_span("span").end()
        assert time.monotonic() - began < 60
        began = time.monotonic()
        with capture_logs() as logs:
            export.close()
        assert FLUSH_S <= time.monotonic() - began < 20
    assert [line["log_level"] for line in logs] == ["warning"]
