"""A handler that outlives the revoke of its partition: what it did counts for nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support import kafka
from tests.support.kafka import New, Writer
from tests.support.ledgers import Position, invocations
from tests.support.service import service, sticking
from tests.support.waiting import eventually

Topic = Callable[..., str]


def test_a_run_that_outlives_its_revoke_publishes_nothing(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str
) -> None:
    """The new owner runs the record itself; a commit by the old one would skip it in a crash."""
    source = topic("proof", partitions=2)
    options: dict[str, Any] = {
        "handlers": sticking("slow"),
        "settings": {
            "workers": {"processes": 1, "threads": 4, "revoke_timeout": "1s"},
            "delivery": {"results": results},
            "kafka.consumer": {"heartbeat.interval.ms": 500},  # to hear soon that another joins
        },
    }
    slow: Position = (source, 1, 0)
    writer = Writer(bootstrap, tmp_path / "produced")
    with service(tmp_path / "here", bootstrap, [source], **options) as old:
        old.serve()
        writer.write(source, [New("slow", b"slow", b"k", 1)])
        old.handled(1)
        options |= {"name": old.name, "instance": "there", "ledger": old.ledger}
        with service(tmp_path / "there", bootstrap, [source], **options) as new:
            new.serve()
            eventually(lambda: new.shares() == [[(source, 1)]], what="it has one")
            old.handled(2)  # the new owner has begun it, too
            (old.folder / "released").touch()
            old.handled(3)
            # When a later record is through, what ended before it would be as well.
            writer.write(source, [New("later", b"later", b"k", 0)])
            eventually(lambda: old.committed()[source, 0] == 1, what="the later one is committed")
            assert old.committed()[source, 1] == 0
            assert slow not in sources(bootstrap, results)
            (new.folder / "released").touch()
            eventually(lambda: new.committed()[source, 1] == 1, what="the new owner commits it")
            assert sources(bootstrap, results).count(slow) == 1
            assert new.stop() == 0
        old.ends_well()
    of_slow = [run for run in invocations(old.ledger) if run.position == slow]
    assert len({run.pid for run in of_slow}) == len(of_slow) == 2


def sources(bootstrap: str, results: str) -> list[Position]:
    return [read.source for read in kafka.read_all(bootstrap, results)]
