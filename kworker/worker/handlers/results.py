"""The encoder of a handler's results: serialises, addresses and measures them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import orjson
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

from kworker.core.chunk import Chunk
from kworker.core.headers import ATTEMPT, INDEX, REPLAY, SOURCE, TABLE, TRACE, is_traced
from kworker.core.message import HeaderList, RawMessage
from kworker.core.outcome import (
    NO_RESULTS,
    Output,
    Result,
    Results,
    Succeeded,
    TooLarge,
    Unpublishable,
    plain_result,
    size_of_headers,
)
from kworker.core.plain_results import Addressed, PlainValue
from kworker.core.record import Record
from kworker.worker.handlers.unfit_result import (
    describe_not_finite,
    describe_unfit,
    holds_not_finite,
)
from kworker.worker.topic_limits import TopicLimits

_NOT_PLAIN = frozenset({type(None), list, Result})


class ResultEncoder:
    """Encodes the values that handlers return as records for Kafka. Stateless and thread-safe."""

    def __init__(
        self, topic: str, further: Collection[str], limits: TopicLimits, replay: str = ""
    ) -> None:
        """`topic` is the results topic. `further` are the others that results may name.

        `replay` is the id of the replay in which the handlers run; empty outside of one.
        """
        self.topic = topic
        self._further = frozenset(further)
        self._limits = limits
        self._replay = replay

    def encode(self, record: Record, returned: Any) -> Succeeded:
        """Encodes a returned value. Raises Unpublishable if it cannot be written or is too big."""
        if (
            type(returned) not in _NOT_PLAIN
            and record.attempt == 1
            and record.envelope is None
            and not self._replay
            and not is_traced(record.raw.headers())
        ):
            return self._plain(record, returned)
        if returned is None:
            return NO_RESULTS
        if type(returned) is list:
            several = [item for item in returned if item is not None]
            outputs = [self._output(record, item, i) for i, item in enumerate(several)]
            return self._measured(outputs) if outputs else NO_RESULTS
        return self._measured([self._output(record, returned, 0)])

    def _plain(self, record: Record, item: Any) -> Succeeded:
        """Encodes a returned value faster than `_output` does; only for a record's first run."""
        raw, partition, key = record.raw, record.partition, record.raw.key()
        value = serialise(item, 0)
        source = b"%b%d/%d" % (partition.prefix, record.offset, raw.timestamp()[1])
        size = partition.frame_size + len(value) + (len(key) if key else 0)
        if size > self._limits.max_bytes(self.topic):
            return self._measured([self._output(record, item, 0)])  # whose size is exact
        return plain_result(self.topic, key, value, source, size)

    def for_chunk(self, chunk: Chunk) -> Callable[[int, RawMessage, Any], PlainValue | None]:
        """Returns a function that notes the plain results of a chunk's records in the chunk.

        Called with the index of a record, the record, and what the handler returned, unless that is
        `without_results`. It returns what the plain result has beside what its record tells, and
        None for all else: then `encode` says what it is.
        """
        if self._replay:
            return lambda _nth, _raw, _returned: None
        most = self._limits.max_bytes(self.topic) - chunk.partition.frame_size
        surely = most - chunk.memory_bytes  # whatever key and traces the record has
        values, chunk.results_topic = chunk.values, self.topic
        headers = chunk.columns.headers

        def add_plain(nth: int, raw: RawMessage, returned: Any) -> PlainValue | None:
            value: PlainValue | None
            own = _traces(headers[nth]) if headers else []
            try:
                if type(returned) is dict:
                    value = json = _json(returned, 0)
                    size = len(json)
                    if own:
                        value = Addressed(json, raw.key(), own)
                else:
                    value = self._plain_value(raw, returned, own)
                    size = _size(value)
            except Unpublishable:
                return None
            if value is None or (size > surely and _size(value) + len(raw.key() or b"") > most):
                return None
            if len(values) < nth:  # those before it had no results
                values.extend([None] * (nth - len(values)))
            values.append(value)
            return value

        return add_plain

    def _plain_value(self, raw: RawMessage, returned: Any, traces: HeaderList) -> PlainValue | None:
        """Encodes what is one result for the results topic; returns None for all else.

        A tombstone counts as something else, since nothing tells it from a record without results.
        """
        if type(returned) is list:
            several = [item for item in returned if item is not None]
            if len(several) != 1:
                return None
            [returned] = several
        if type(returned) is not Result:
            value = serialise(returned, 0)
            return Addressed(value, raw.key(), traces) if traces else value
        output = self._addressed(raw, returned, 0, traces)
        if output.value is None or output.topic != self.topic:
            return None
        if not output.headers and output.key == raw.key():
            return output.value
        return Addressed(output.value, output.key, output.headers)

    def _output(self, record: Record, item: Any, index: int) -> Output:
        raw = record.raw
        headers = own_headers(record, index) + replay_header(record, self._replay)
        if type(item) is Result:
            return self._addressed(raw, item, index, headers)
        return Output(self.topic, raw.key(), serialise(item, index), headers)

    def _measured(self, outputs: Sequence[Output]) -> Results:
        for output in outputs:
            if output.size > (most := self._limits.max_bytes(output.topic)):
                text = f"a result of up to {output.size} bytes; {output.topic} takes {most}"
                raise TooLarge(text, outputs)
        return Results(outputs)

    def _addressed(
        self, raw: RawMessage, result: Result, index: int, headers: HeaderList
    ) -> Output:
        topic = result.topic or self.topic
        if topic != self.topic and topic not in self._further:
            raise Unpublishable(f"the result's topic {topic!r} is not among delivery.topics")
        if result.table:
            headers.append((TABLE, _bytes("table", result.table)))
        headers += _users(result.headers)
        key = raw.key() if result.key is None else _bytes("key", result.key)
        value = None if result.value is None else serialise(result.value, index)
        return Output(topic, key, value, headers)


def own_headers(record: Record, index: int) -> HeaderList:
    """Returns the headers that kworker adds to a result.

    They are the record's source position and its trace headers. The index of the result is added
    unless it is 0, and the number of the attempt unless it is 1.
    """
    raw = record.raw
    headers: HeaderList = [(SOURCE, str(record.source).encode())]
    if index:
        headers.append((INDEX, b"%d" % index))
    if record.attempt > 1:
        headers.append((ATTEMPT, b"%d" % record.attempt))
    return headers + _traces(raw.headers())


def _traces(headers: HeaderList | None) -> HeaderList:
    """Returns those headers of a record that its results get, too."""
    return [header for header in headers or () if header[0] == TRACE]


def _size(value: PlainValue | None) -> int:
    """Returns an upper bound of the bytes in a batch, but for a key that is the record's."""
    if not isinstance(value, Addressed):
        return len(value or b"")
    return len(value.value) + len(value.key or b"") + size_of_headers(value.headers)


def without_results(returned: Any) -> bool:
    """Returns True if a handler that returns this has no results."""
    return returned is None or (type(returned) is list and all(item is None for item in returned))


def replay_header(record: Record, replay: str) -> HeaderList:
    """Returns the header that marks an output of a replay; none if the output is live.

    `replay` is the id of the replay that runs the record, if any. The output of a record with a
    claim gets no header: such a record runs only if its event was never done before, so this run is
    the first to complete the event, and its outputs are live.
    """
    origin = replay.encode() if replay and not record.claim else record.replay
    return [(REPLAY, origin)] if origin else []


def serialise(value: Any, index: int) -> bytes:
    """Returns bytes as they are, text as UTF-8 and all else as JSON.

    Raises Unpublishable if a text cannot be encoded, or a value cannot be written as JSON. The
    exception then names the part at fault. `index` is that of the result in the handler's list of
    results.
    """
    match value:
        case dict():
            return _json(value, index)
        case bytes():
            return bytes(value)  # a subclass may be unknown to another process
        case str():
            return _encoded(value)
        case BaseModel():
            return _encoded(_dumped(value, index))
    return _json(value, index)


def _dumped(model: BaseModel, index: int) -> str:
    try:
        text = model.model_dump_json()
        if "null" in text and model.model_config.get("ser_json_inf_nan", "null") == "null":
            _refuse_what_became_null(model.model_dump(), index)
    except PydanticSerializationError:
        raise Unpublishable(describe_unfit(model, index)) from None
    return text


def _json(value: Any, index: int) -> bytes:
    try:
        data = orjson.dumps(value)
    except TypeError:  # orjson's own error is one
        raise Unpublishable(describe_unfit(value, index)) from None
    if data.find(b"null") >= 0:  # `in` first tries bytes as a number, and raises inside
        _refuse_what_became_null(value, index)
    return data


def _refuse_what_became_null(value: Any, index: int) -> None:
    """Raises Unpublishable for NaN and infinity, which JSON encoders silently write as null."""
    if holds_not_finite(value):
        raise Unpublishable(describe_not_finite(value, index))


def _encoded(text: str) -> bytes:
    try:
        return str.encode(text)
    except UnicodeEncodeError as error:
        raise Unpublishable(str(error)) from None


def _bytes(part: str, value: Any) -> bytes:
    if isinstance(value, str):
        return _encoded(value)
    if not isinstance(value, bytes):
        raise Unpublishable(f"a result's {part} is {type(value).__name__}, expected bytes or str")
    return bytes(value)


def _users(headers: Any) -> HeaderList:
    """Returns the headers of a Result. Raises Unpublishable for a malformed or reserved one."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    own = []
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise Unpublishable(f"a result's header is {pair!r}, expected (name, value)")
        name, value = pair
        if b"\0" in _encoded(name):
            raise Unpublishable(
                f"the header name {name!r} contains a NUL, where Kafka's client would cut the name"
            )
        own.append((name, None if value is None else _bytes(f"header {name!r}", value)))
    if forged := [name for name, _ in own if name.lower().startswith("kworker-")]:
        raise Unpublishable(f"header {forged[0]!r}: names with the prefix kworker- are reserved")
    return own
