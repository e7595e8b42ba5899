"""A service that hostile records meet, with a normal load beside; and what became of each."""

import json
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import methodcaller
from pathlib import Path
from typing import Any, NamedTuple

from kworker.core.message import HeaderList
from tests.support import kafka
from tests.support.hostile import FORGED_FROM, SOURCE_BYTES_MAX, Hostile, Sent, Topics
from tests.support.kafka import New, Raw, Writer
from tests.support.ledgers import At
from tests.support.raw_writer import RawWriter
from tests.support.service import Service, Settings, service
from tests.support.waiting import eventually

HANDLERS = """
import math
import zlib
from kworker import Reject, Retry

class Bare(Retry):
    def __init__(self):
        pass

class Never(Retry):
    def __init__(self):
        self.after_s = math.nan

class Mute(Exception):
    def __str__(self):
        raise SystemExit(3)

class Loud(Exception):
    def __str__(self):
        return "\\ud800" * 50_000

def fails(message):
    kind = zlib.crc32((message.value or b"") + (message.key or b"")) % 16
    failures = {0: Mute, 1: Bare, 2: Never, 3: Loud, 4: lambda: Reject("\\udcff")}
    if kind in failures:
        raise failures[kind]()
    if kind == 5:
        message.json()
    if kind == 6:
        message.text()
    assert len(message.headers) >= 0
    assert message.timestamp is not None

"""
PLAIN = """
def handle(message):
    fails(message)
    return message.value or {"null": True}
"""
IDENTIFIED = (
    PLAIN
    + """
import sys

def event(message):
    kind = zlib.crc32(message.value or b"") % 8
    if kind == 0:
        raise Mute
    if kind == 1:
        sys.exit(4)
    if kind == 2:
        return None
    end = "\\ud800" if kind == 3 else "x" * 300 if kind == 4 else ""
    return f"{message.topic}/{message.partition}/{message.offset}{end}"
"""
)
ASYNC = """
async def handle(message):
    fails(message)
    return message.value or {"null": True}
"""
BATCHES = """
from kworker import Message, batch

@batch(size=50, wait="20ms")
def handle(messages: list[Message]):
    return [outcome(message) for message in messages]

def outcome(message):
    try:
        fails(message)
    except Exception as error:
        return error
    return message.value or {"null": True}
"""
DELAYS = ("100ms", "200ms")
PARTITIONS = 4
PROCESSES, THREADS = 2, 8
QUIET_S = 240.0
_ASKED = methodcaller("headers")


class Place(NamedTuple):
    """Where a record came from, by its end's header or its own position."""

    topic: str
    partition: int
    offset: int


class End(NamedTuple):
    """A result or a dead letter."""

    place: Place
    key: bytes | None
    value: bytes | None
    reason: str  # "" of a result
    headers: HeaderList


class Found(NamedTuple):
    """All that an independent reader sees afterwards."""

    sent: Sequence[Sent]
    records: Mapping[Place, Raw]  # of the source topics
    strangers: Mapping[Place, bytes]  # by where they are: their marks
    ends: Sequence[End]
    stayed: Counter[bytes]  # strangers among results and dead letters, by their marks
    reasons: Counter[str]
    restarts: int
    exit_code: int
    verbs: Mapping[str, int]  # exit codes of those that read dead letters


def run(
    folder: Path,
    bootstrap: str,
    *,
    seed: int,
    count: int,
    handlers: str = PLAIN,
    guarantee: str = "at-least-once",
    more: Settings | None = None,
) -> Found:
    """Writes all of it, waits until nothing moves any more, stops the service, and reads."""
    names = [f"{kind}-{uuid.uuid4().hex[:8]}" for kind in ("hostile", "calm")]
    hostile, calm = (
        kafka.create_topic(bootstrap, name, PARTITIONS, retention_ms="-1") for name in names
    )
    settings = {
        "workers": {"processes": PROCESSES, "threads": THREADS},
        "retry": {"delays": list(DELAYS)},
        "dead_letter": {"breaker": ""},
        "delivery": {"guarantee": guarantee},
        **(more or {}),
    }
    with service(
        folder, bootstrap, [hostile, calm], handlers=HANDLERS + handlers, settings=settings
    ) as met:
        topics = Topics(
            hostile,
            f"{met.name}.requeue",
            [f"{met.name}.retry.{delay}" for delay in DELAYS],
            f"{met.name}.dead",
            met.results,
            PARTITIONS,
        )
        met.serve()
        writer, load = RawWriter(bootstrap), Writer(bootstrap, folder / "produced")
        sent = []
        for number, each in enumerate(Hostile(seed, topics).records(count)):
            writer.write(each.record)
            load.begin(calm, [New(str(number), b"calm %d" % number, b"calm-%d" % (number % 50))])
            sent.append(each)
        writer.finish()
        load.finish()
        eventually(lambda: _quiet(met, topics), timeout_s=QUIET_S, every_s=0.5, what="quiet")
        status = met.status()
        restarts = sum(row["restarts"] for row in [*status["workers"], status["delay"]])
        verbs = {
            verb: met.command("dead", *verb.split()).returncode
            for verb in ("list --json", "list", "export", "show 0:0", "redrive --dry-run")
        }
        exit_code = met.stop()
        met.is_gone()
        writer.close()
        return _found(bootstrap, topics, calm, sent, restarts, exit_code, verbs)


def _quiet(met: Service, topics: Topics) -> bool:
    """Nothing was written between two looks, and both groups have committed all there is."""
    before = _ends(met, topics)
    held = {
        **kafka.committed(met.bootstrap, met.name),
        **kafka.committed(met.bootstrap, f"{met.name}.delay"),
    }
    return all(held.get(at, 0) >= end for at, end in before.items()) and before == _ends(
        met, topics
    )


def _ends(met: Service, topics: Topics) -> dict[At, int]:
    ends: dict[At, int] = {}
    for topic in (*met.topics, topics.requeue, *topics.delays):
        ends.update(kafka.ends(met.bootstrap, topic))
    return ends


def _found(
    bootstrap: str,
    topics: Topics,
    calm: str,
    sent: Sequence[Sent],
    restarts: int,
    exit_code: int,
    verbs: Mapping[str, int],
) -> Found:
    records = {
        Place(topic, raw.partition(), raw.offset()): raw
        for topic in (topics.source, calm)
        for raw in kafka.messages(bootstrap, topic)
    }
    strangers = {
        Place(topic, raw.partition(), raw.offset()): mark_of(raw.value())
        for topic in (topics.requeue, *topics.delays)
        for raw in kafka.messages(bootstrap, topic)
    }
    staying = {each.mark for each in sent if each.stays}
    ends: list[End] = []
    stayed: Counter[bytes] = Counter()
    for topic in (topics.results, topics.dead):
        for raw in kafka.messages(bootstrap, topic):
            mark = mark_of(raw.value())
            if mark in staying:
                stayed[mark] += 1
            else:
                ends.append(_end(raw))
    reasons = Counter(end.reason or "result" for end in ends)
    return Found(sent, records, strangers, ends, stayed, reasons, restarts, exit_code, verbs)


def mark_of(value: bytes | None) -> bytes:
    """What a stranger's value ends with; empty for others."""
    if not value or not value.endswith(b">"):
        return b""
    return value[value.rfind(b"<") :]


def _end(raw: Raw) -> End:
    headers = _headers(raw)
    assert headers is not None, "kworker wrote a header that nobody can read"
    named = dict(headers)
    topic, partition, offset, _ = (named["kworker-source"] or b"").decode().rsplit("/", 3)
    reason = (named.get("kworker-reason") or b"").decode()
    place = Place(topic, int(partition), int(offset))
    return End(place, raw.key(), raw.value(), reason, headers)


def _headers(raw: Raw) -> HeaderList | None:
    """None for what the client cannot tell; not by a call in Python, which may not see that."""
    try:
        return list(_ASKED(raw) or ())
    except SystemError:
        return None


def judge(found: Found) -> dict[str, Any]:
    """What is wrong, by kind; nothing, if all is well."""
    wrong: dict[str, Any] = {}

    def tell(kind: str, what: Any) -> None:
        if what:
            wrong[kind] = what

    by_place = Counter(end.place for end in found.ends)
    of_source = {place for place in by_place if place in found.records}
    tell("lost", [*(found.records.keys() - of_source)][:5])
    tell("twice", [place for place, times in by_place.items() if times > 1][:5])
    strangers = {each.mark: each for each in found.sent if each.mark and not each.stays}
    met: Counter[bytes] = Counter()
    for end in found.ends:
        if end.place in found.records:
            tell("changed", _changed(found.records[end.place], end))
            continue
        mark = found.strangers.get(_stays(end) or end.place, mark_of(end.value))
        each = strangers.get(mark)
        if each is None:
            tell("unknown", end)
            continue
        met[each.mark] += 1
        tell("misread", _misread(each, end))
    tell("strangers", [mark for mark in strangers if met[mark] != 1][:5])
    stays = [each.mark for each in found.sent if each.stays]
    tell("moved", [mark for mark in stays if found.stayed[mark] != 1][:5])
    written = sum(1 for place in found.records if place.topic.startswith("hostile"))
    tell("unwritten", sum(1 for each in found.sent if not each.mark) - written)
    tell("restarts", found.restarts)
    tell("exit code", found.exit_code)
    tell("verbs", {verb: code for verb, code in found.verbs.items() if code})
    return wrong


def _misread(each: Sent, end: End) -> Any:
    """A stranger that was believed though it should not, or the reverse; or that was changed."""
    believed = end.place.offset >= FORGED_FROM
    named = "/".join(map(str, end.place))
    right = each.forged.startswith(f"{named}/") if each.forged else not believed
    same = end.value == each.record.value and (end.key or None) == (each.record.key or None)
    if end.value is None:  # a record as large as its topic takes, and its headers beside
        same = _stays(end) is not None and len(each.record.value or b"") > SOURCE_BYTES_MAX
    return None if right and same else (each, end)


def _changed(raw: Raw, end: End) -> Any:
    """What a record's end has not as the record has it."""
    headers = _headers(raw)
    if (headers is None) != (end.reason == "unreadable"):
        return raw.value(), end
    if end.key != raw.key():
        return raw.key(), end
    if not end.reason:
        same = end.value == raw.value() or json.loads(end.value or b"") == {"null": True}
        return None if same else (raw.value(), end)
    same = end.value == raw.value() and _users(end.headers) == (headers or [])
    if _message(end).endswith("headers have no room in the dead-letter topic and are not copied"):
        same = end.value == raw.value() and _users(end.headers) == []
    return None if same else (raw.value(), headers, end)


def _stays(end: End) -> Place | None:
    """Where a record is that had no room in the dead-letter topic, by its dead letter."""
    _, stays, place = _message(end).rpartition(" and stays at ")
    if not stays:
        return None
    topic, partition, offset = place.rsplit("/", 2)
    return Place(topic, int(partition), int(offset))


def _message(end: End) -> str:
    return (dict(end.headers).get("kworker-message") or b"").decode()


def _users(headers: HeaderList) -> HeaderList:
    """The user's headers: all but kworker's and the last two, under their own names again."""
    *carried, _, _ = headers
    mine = [pair for pair in carried if not _is_kworkers(pair[0])]
    return [(name.replace("kworker-in-", "kworker-", 1), value) for name, value in mine]


def _is_kworkers(name: str) -> bool:
    return name.startswith("kworker-") and not name.startswith("kworker-in-")
