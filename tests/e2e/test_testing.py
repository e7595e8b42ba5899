"""What `kworker.testing` reports is what the service does on a real Kafka."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from kworker.core import headers as names
from kworker.testing import message, run
from tests.support.bare_service import ROOT, python
from tests.support.kafka import messages
from tests.support.service import service
from tests.support.waiting import eventually

HANDLERS = """
from kworker import Reject, Result, Retry

def handle(message):
    value = message.json()
    if value["n"] % 5 == 1:
        raise Reject("no")
    if value["n"] % 5 == 2:
        raise ValueError(value["n"])
    if value["n"] % 5 == 3 and message.attempt == 1:
        raise Retry("busy")
    if value["n"] % 5 == 4:
        return [Result({"n": value["n"]}, key=message.key, headers=[("half", b"1")])] * 2
    return {"n": value["n"], "attempt": message.attempt}
"""
SENT = [(f"k{n % 7}", json.dumps({"n": n})) for n in range(50)]
SENT += [("bad", "no JSON"), ("null", "null")]


def plain(value: bytes | None) -> Any:
    return json.loads(value or b"null")


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_it_reports_what_the_service_does_on_a_real_kafka(
    tmp_path: Path,
    bootstrap: str,
    topic: Callable[..., str],
    guarantee: str,
) -> None:
    source = topic("twice", partitions=1)
    settings = {
        "retry": {"delays": ["1s"]},
        "delivery": {"guarantee": guarantee},
        "workers": {"processes": 1, "threads": 4},
    }
    with service(
        tmp_path / "service", bootstrap, [source], handlers=HANDLERS, settings=settings
    ) as real:
        records = [message(value, key=key, topic=source) for key, value in SENT]
        named: dict[str, Any] = {}
        exec(HANDLERS, named)  # not imported: other tests have a module of this name
        told = run(named["handle"], records, config=real.config)

        real.serve()
        producer = Producer({"bootstrap.servers": bootstrap})
        for key, value in SENT:
            producer.produce(source, value.encode(), key.encode())
        assert producer.flush(20) == 0
        ended = len({each.source for each in told.results}) + len(told.dead)
        eventually(lambda: _ended(real.status()) == ended, what="every record has ended")
        real.caught_up()
        results = messages(bootstrap, real.results)
        dead = messages(bootstrap, f"{real.name}.dead")
        real.ends_well()
    assert sorted((r.key(), r.value()) for r in results) == sorted(
        (each.key, each.value) for each in told.results
    )
    assert sorted(_letter(raw) for raw in dead) == sorted(
        (each.source.offset, each.reason, each.exception, each.attempt) for each in told.dead
    )
    assert len(told.retries) == 21


def _ended(status: dict[str, Any]) -> int:
    counters = status.get("counters", {})
    return int(counters.get("done", 0) + counters.get("dead", 0))


def _letter(raw: Any) -> tuple[int, str, str, int]:
    own = {name: value.decode() for name, value in raw.headers() if name.startswith("kworker-")}
    offset = int(own[names.SOURCE].split("/")[2])
    return offset, own[names.REASON], own[names.EXCEPTION], int(own[names.ATTEMPT])


def test_the_example_is_tested_with_it() -> None:
    """As its reader would: in the folder, by pytest, with the fixture that pytest finds."""
    done = python("-m", "pytest", "examples/orders", "-q", "-p", "no:cacheprovider", cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
