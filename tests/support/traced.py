"""A service in memory whose runs are traced, and the spans that it made."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler
from opentelemetry.trace import SpanContext, Tracer, format_span_id, format_trace_id

from kworker.config import toml_file
from kworker.core.message import Fields, RawMessage
from kworker.message import Message
from kworker.testing.memory_service import MemoryService
from kworker.worker.handlers import loader
from kworker.worker.handlers.tracing import UNTRACED
from kworker.worker.tracing.run_spans import RunSpans
from kworker.worker.tracing.traced_runs import TracedRuns

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT_ID = "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE_ID}-{PARENT_ID}-01".encode()
LIMIT_S, TIMEOUT_S = 86_400.0, 30.0

Header = tuple[str, bytes | None]


class Spans:
    """A provider whose spans the test reads; `tracer` is for spans that handlers make."""

    def __init__(self, sampler: Sampler = ALWAYS_ON) -> None:
        self._exporter = InMemorySpanExporter()
        self._provider = TracerProvider(sampler, shutdown_on_exit=False)
        self._provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer: Tracer = self._provider.get_tracer("test")
        self.runs = TracedRuns(
            RunSpans(self._provider.get_tracer("kworker"), "test"), self._provider.shutdown
        )

    def named(self, name: str) -> list[ReadableSpan]:
        """The spans of a name, in the order of their ends."""
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


@dataclass(frozen=True)
class Done:
    """What a service has published."""

    results: Sequence[RawMessage]
    retries: Sequence[RawMessage]
    dead: Sequence[RawMessage]


def record(
    value: bytes | None = b"{}",
    *headers: Header,
    key: bytes | None = None,
    at: tuple[str, int, int] = ("orders", 0, 0),
) -> RawMessage:
    return Fields(at, 1_700_000_000_000, key, value, headers)


def serve(
    folder: Path,
    handler: Callable[..., Any],
    records: Sequence[RawMessage],
    spans: Spans | None,
    settings: Mapping[str, Any] | None = None,
) -> Done:
    """Runs records through a handler until each has ended; without `spans`, nothing is traced."""
    tables = {
        "name": "test",
        "handler": "none:none",
        "source": {"topics": sorted({each.topic() for each in records})},
        "kafka": {"bootstrap.servers": "memory:9092"},
        "retry": {"delays": ["1m"]},
        **(settings or {}),
    }
    config = toml_file.from_tables(tables, folder / "kworker.toml", {})
    handlers = loader.of_callable(config, handler)
    handlers.open(TIMEOUT_S).result()
    with closing(handlers):
        service = MemoryService(config, handlers, records, spans.runs if spans else UNTRACED)
        try:
            service.run(LIMIT_S, TIMEOUT_S)
        finally:
            service.stop()
    topics = ("test.results", "test.retry.1m", "test.dead")
    return Done(*(service.kafka.records(topic) for topic in topics))


def traceparents(records: Sequence[RawMessage | Message]) -> list[bytes | None]:
    """The header of each record, which must have one."""
    found = []
    for each in records:
        headers = each.headers if isinstance(each, Message) else each.headers() or ()
        [value] = [value for name, value in headers if name == "traceparent"]
        found.append(value)
    return found


def names(span: ReadableSpan) -> bytes:
    """The header that names a span."""
    return _header(span.context)


def parent_of(span: ReadableSpan) -> bytes | None:
    """The header that names the parent of a span; None for the first of its trace."""
    return _header(span.parent) if span.parent else None


def _header(context: SpanContext) -> bytes:
    ids = f"{format_trace_id(context.trace_id)}-{format_span_id(context.span_id)}"
    return f"00-{ids}-{context.trace_flags:02x}".encode()
