"""A producer of what no Python client writes: header names of any bytes, by the library itself."""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

from tests.support.library import library

_PRODUCER = 0
_TEXT_BYTES = 512
_FLUSH_MS = 60_000
_QUEUE_FULL = -184
_POLL_MS = 50
_COPY = 2
_TOPIC, _PARTITION, _VALUE, _KEY, _FLAGS, _TIMESTAMP, _HEADERS = 1, 3, 4, 5, 7, 8, 10


class RawRecord(NamedTuple):
    """A record as bytes; without a stamp it is written now."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[bytes, bytes | None]] = ()
    time_ms: int = 0


class _Memory(ctypes.Structure):
    _fields_ = (("at", ctypes.c_void_p), ("size", ctypes.c_size_t))


class _Value(ctypes.Union):
    _fields_ = (
        ("text", ctypes.c_char_p),
        ("number", ctypes.c_int),
        ("partition", ctypes.c_int32),
        ("time", ctypes.c_int64),
        ("memory", _Memory),
        ("pointer", ctypes.c_void_p),
        ("_", ctypes.c_char * 64),
    )


class _Part(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), ("value", _Value))


class RawWriter:
    """Writes records one by one; used by one thread."""

    def __init__(self, bootstrap: str) -> None:
        self._library = lib = library()
        for name in ("rd_kafka_headers_new", "rd_kafka_produceva"):
            getattr(lib, name).restype = ctypes.c_void_p
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        conf = ctypes.c_void_p(lib.rd_kafka_conf_new())
        for name, value in {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": "true",
            "linger.ms": "5",
            "message.max.bytes": "10000000",
            "log_level": "0",
        }.items():
            done = lib.rd_kafka_conf_set(conf, name.encode(), value.encode(), text, _TEXT_BYTES)
            assert done == 0, text.value
        made = lib.rd_kafka_new(_PRODUCER, conf, text, _TEXT_BYTES)
        assert made, text.value
        self._client = ctypes.c_void_p(made)

    def write(self, record: RawRecord) -> None:
        """Queues it; waits for room."""
        lib = self._library
        headers = ctypes.c_void_p(lib.rd_kafka_headers_new(ctypes.c_size_t(len(record.headers))))
        for name, value in record.headers:
            length = ctypes.c_ssize_t(-1 if value is None else len(value))
            failed = lib.rd_kafka_header_add(
                headers, name, ctypes.c_ssize_t(len(name)), value, length
            )
            assert not failed, name
        while code := self._produced(record, headers):
            assert code == _QUEUE_FULL, code
            lib.rd_kafka_poll(self._client, _POLL_MS)

    def finish(self) -> None:
        """Waits until all are acknowledged or refused: a reader tells which."""
        assert self._library.rd_kafka_flush(self._client, _FLUSH_MS) == 0

    def close(self) -> None:
        self._library.rd_kafka_destroy(self._client)

    def _produced(self, record: RawRecord, headers: ctypes.c_void_p) -> int:
        lib = self._library
        parts = (_Part * 7)()
        for part, kind in zip(
            parts, (_TOPIC, _PARTITION, _VALUE, _KEY, _FLAGS, _TIMESTAMP, _HEADERS), strict=True
        ):
            part.kind = kind
        parts[0].value.text = record.topic.encode()
        parts[1].value.partition = record.partition
        parts[2].value.memory = _memory(record.value)
        parts[3].value.memory = _memory(record.key)
        parts[4].value.number = _COPY
        parts[5].value.time = record.time_ms
        parts[6].value.pointer = headers
        if not (error := lib.rd_kafka_produceva(self._client, parts, ctypes.c_size_t(7))):
            return 0
        code: int = lib.rd_kafka_error_code(ctypes.c_void_p(error))
        lib.rd_kafka_error_destroy(ctypes.c_void_p(error))
        return code


def _memory(data: bytes | None) -> _Memory:
    """The bytes themselves: they live as long as the call."""
    if data is None:
        return _Memory(None, 0)
    return _Memory(ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p), len(data))
