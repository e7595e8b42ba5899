"""The spans of handlers' runs, by OpenTelemetry's semantic conventions for messaging."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    format_span_id,
    format_trace_id,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kworker.core.bisection import PartOutcomes
from kworker.core.failure import Failure
from kworker.core.message import RawMessage
from kworker.core.outcome import Snooze
from kworker.core.record import Record
from kworker.worker.handlers.batch_call import BatchPart

Attributes = dict[str, str | int | bool]

_W3C = TraceContextTextMapPropagator()
_HEADERS = ("traceparent", "tracestate")
_KEY_BYTES_MAX = 256  # a longer key is left out, since a part of one is no key
_UNKNOWN_ERROR = "_OTHER"  # the convention's own word


class RunSpans:
    """Makes the span of each run of a handler. Stateless and thread-safe.

    While a run lasts, its span is the current one of the thread or task, so that spans that the
    handler makes are its children. Once the run begins, the record's header `traceparent` names the
    span. So all outputs of the run carry this header.
    """

    def __init__(self, tracer: Tracer, group: str) -> None:
        """`group` is the consumer group."""
        self._tracer = tracer
        self._group = group

    @contextmanager
    def of_run(self, record: Record) -> Iterator[None]:
        """Opens the span of a record's run, a child of the span that the record's header names.

        A call of the handler's `dead` gets no span of its own: the failed run's span is current.
        """
        parent = _context_of(record)
        if record.on_dead is not None:
            with _current(parent):
                yield
            return
        attributes = _attributes_of(record.raw) | {"kworker.attempt": record.attempt}
        span = self._start(record.raw.topic(), attributes, parent)
        _continue_trace(record, span)
        with _running(span, parent):
            yield

    @contextmanager
    def of_call(self, part: BatchPart) -> Iterator[Span]:
        """Opens the span of a batch handler's call, with a link to the span that each record names.

        It has no parent, since the records may be part of different traces.
        """
        topics = {record.raw.topic() for record in part.records}
        attributes: Attributes = {"messaging.batch.message_count": len(part.records)}
        topic = topics.pop() if len(topics) == 1 else ""
        if topic:
            attributes["messaging.destination.name"] = topic
        nothing = Context()
        span = self._start(topic, attributes, nothing, _links(part.records))
        for record, message in zip(part.records, part.messages, strict=True):
            _continue_trace(record, span)
            message._raw = record.raw
        with _running(span, nothing):
            yield span

    def _start(
        self, topic: str, attributes: Attributes, parent: Context, links: Sequence[Link] = ()
    ) -> Span:
        always: Attributes = {
            "messaging.system": "kafka",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.consumer.group.name": self._group,
        }
        name = f"process {topic}" if topic else "process"
        return self._tracer.start_span(
            name, parent, SpanKind.CONSUMER, always | attributes, links=links
        )


def note_failures(span: Span, ends: PartOutcomes) -> None:
    """Marks the span of a batch as failed if any of its records failed; names the first error."""
    for error in (end for end in ends if isinstance(end, BaseException)):
        _note_failure(span, error)
        return


def _attributes_of(raw: RawMessage) -> Attributes:
    value: Attributes = (
        {} if raw.value() is not None else {"messaging.kafka.message.tombstone": True}
    )
    return {
        "messaging.destination.name": raw.topic(),
        "messaging.destination.partition.id": str(raw.partition()),
        "messaging.kafka.offset": raw.offset(),
        **_key_of(raw),
        **value,
    }


def _key_of(raw: RawMessage) -> Mapping[str, str]:
    key = raw.key()
    if key is None or len(key) > _KEY_BYTES_MAX:
        return {}
    try:
        return {"messaging.kafka.message.key": key.decode()}
    except UnicodeDecodeError:
        return {}


def _context_of(record: Record) -> Context:
    """Returns the context that the record's headers name; an empty one if they name none.

    Of headers that come several times, the first counts.
    """
    carrier: dict[str, str] = {}
    for name, value in record.raw.headers() or ():
        if name in _HEADERS:
            carrier.setdefault(name, (value or b"").decode("ascii", errors="replace"))
    return _W3C.extract(carrier, Context())


def _links(records: Sequence[Record]) -> list[Link]:
    contexts: dict[tuple[int, int], SpanContext] = {}
    for record in records:
        context = get_current_span(_context_of(record)).get_span_context()
        if context.is_valid:
            contexts[context.trace_id, context.span_id] = context
    return [Link(context) for context in contexts.values()]


def _continue_trace(record: Record, span: Span) -> None:
    context = span.get_span_context()
    if context.is_valid:  # not so if the SDK is disabled and the record names no span
        ids = f"{format_trace_id(context.trace_id)}-{format_span_id(context.span_id)}"
        record.continue_trace(f"00-{ids}-{context.trace_flags:02x}".encode())


@contextmanager
def _current(context: Context) -> Iterator[None]:
    token = attach(context)
    try:
        yield
    finally:
        detach(token)


@contextmanager
def _running(span: Span, parent: Context) -> Iterator[None]:
    try:
        with _current(set_span_in_context(span, parent)):
            yield
    except BaseException as error:
        _note_failure(span, error)
        raise
    finally:
        span.end()


def _note_failure(span: Span, error: BaseException) -> None:
    """Marks the span as failed, with the type of the error alone: its text may quote the record.

    Does not mark the span of a snoozed run, which has not failed.
    """
    if isinstance(error, Snooze):
        return
    try:
        name = Failure.of(error).exception
    except BaseException:  # noqa: BLE001 - an exception of the user's may raise anything
        name = _UNKNOWN_ERROR
    span.set_attribute("error.type", name or _UNKNOWN_ERROR)
    span.set_status(Status(StatusCode.ERROR))
