"""The scenes of batch consumption: alpha, bravo and charlie taken together, delta next."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.support.kafka import New, Writer, ends, read_all, visible_ends
from tests.support.ledgers import Produced, invocations
from tests.support.service import Service, service
from tests.support.waiting import eventually

Topic = Callable[..., str]

# While `deadly` is there, bravo waits for `now` and then kills the process that handles it.
DEADLY = """
import os, signal, time
from pathlib import Path
from tests.support.recorded import recorded

DEADLY, NOW = (Path(__file__).with_name(name) for name in ("deadly", "now"))

@recorded
def handle(message):
    if message.text() == "bravo" and DEADLY.exists():
        while not NOW.exists():
            time.sleep(0.01)
        DEADLY.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return message.value
"""
ONE_WORKER = {"workers": {"processes": 1, "threads": 4}}


def new(name: str, partition: int = 0) -> New:
    return New(name, name.encode(), name.encode(), partition)


TOGETHER = [new("alpha"), new("bravo"), new("charlie")]


def test_the_position_follows_finished_records(
    tmp_path: Path, bootstrap: str, topic: Topic
) -> None:
    """Each is handled once; after the three the position is three, and delta makes it four."""
    foo = topic("foo", partitions=1)
    writer = Writer(bootstrap, tmp_path / "produced")
    writer.write(foo, TOGETHER)
    with service(tmp_path / "service", bootstrap, [foo], settings=ONE_WORKER) as scene:
        scene.serve()
        eventually(lambda: scene.committed() == {(foo, 0): 3}, what="the three are committed")
        writer.write(foo, [new("delta")])
        eventually(lambda: scene.committed() == {(foo, 0): 4}, what="delta is committed")
        assert scene.stop() == 0
    assert times(scene, writer.acked) == {"alpha": 1, "bravo": 1, "charlie": 1, "delta": 1}


def test_the_process_dies_in_bravo_and_only_bravo_comes_again(
    tmp_path: Path, bootstrap: str, topic: Topic
) -> None:
    """Alpha is committed. Charlie, which had finished behind bravo, is as well, by the map."""
    foo = topic("foo", partitions=1)
    writer = Writer(bootstrap, tmp_path / "produced")
    writer.write(foo, TOGETHER)
    with service(
        tmp_path / "service", bootstrap, [foo], handlers=DEADLY, settings=ONE_WORKER
    ) as scene:
        (scene.folder / "deadly").touch()
        scene.serve()
        eventually(lambda: scene.committed() == {(foo, 0): 1}, what="alpha is committed")
        eventually(lambda: scene.finished((foo, 0)) == 2, what="charlie is committed, too")
        died(scene)
        writer.write(foo, [new("delta")])
        eventually(lambda: scene.committed() == {(foo, 0): 4}, what="all is committed")
        assert scene.stop() == 0
    assert times(scene, writer.acked) == {"alpha": 1, "bravo": 2, "charlie": 1, "delta": 1}


def test_each_partition_of_each_topic_commits_for_itself(
    tmp_path: Path, bootstrap: str, topic: Topic
) -> None:
    """Bravo in foo-1 holds back neither alpha in foo-0 nor charlie in bar-1."""
    foo, bar = topic("foo", partitions=2), topic("bar", partitions=2)
    writer = Writer(bootstrap, tmp_path / "produced")
    writer.write(foo, [new("alpha", 0), new("bravo", 1)])
    writer.write(bar, [new("charlie", 1)])
    others = {(foo, 0): 1, (foo, 1): 0, (bar, 0): 0, (bar, 1): 1}
    with service(
        tmp_path / "service", bootstrap, [foo, bar], handlers=DEADLY, settings=ONE_WORKER
    ) as scene:
        (scene.folder / "deadly").touch()
        scene.serve()
        eventually(lambda: scene.committed() == others, what="the others are committed")
        scene.handled(5)
        died(scene)
        writer.write(foo, [new("delta", 0)])
        all_done = {**others, (foo, 0): 2, (foo, 1): 1}
        eventually(lambda: scene.committed() == all_done, what="all is committed")
        assert scene.stop() == 0
    assert times(scene, writer.acked) == {"alpha": 1, "bravo": 2, "charlie": 1, "delta": 1}


def test_a_read_committed_reader_sees_no_aborted_result(
    tmp_path: Path, bootstrap: str, topic: Topic
) -> None:
    """Exactly once: what stood there when the process died is aborted, and comes again."""
    foo = topic("foo", partitions=1)
    writer = Writer(bootstrap, tmp_path / "produced")
    writer.write(foo, TOGETHER)
    settings = {
        **ONE_WORKER,
        "delivery": {"guarantee": "exactly-once", "commit_interval": "15s"},
    }
    with service(
        tmp_path / "service", bootstrap, [foo], handlers=DEADLY, settings=settings
    ) as scene:
        (scene.folder / "deadly").touch()
        out = (scene.results, 0)
        scene.serve()
        eventually(lambda: ends(bootstrap, out[0]) == {out: 2}, what="alpha and charlie are there")
        assert visible_ends(bootstrap, out[0]) == {out: 0}
        assert values(bootstrap, out[0], "read_uncommitted") == ["alpha", "charlie"]
        assert values(bootstrap, out[0], "read_committed") == []
        died(scene)
        eventually(lambda: scene.committed() == {(foo, 0): 3}, what="the three are committed")
        assert scene.stop() == 0
    high = ends(bootstrap, out[0])
    assert visible_ends(bootstrap, out[0]) == high
    assert values(bootstrap, out[0], "read_committed") == ["alpha", "bravo", "charlie"]
    everything = values(bootstrap, out[0], "read_uncommitted")
    assert everything == ["alpha", "alpha", "bravo", "charlie", "charlie"]
    assert times(scene, writer.acked) == {"alpha": 2, "bravo": 2, "charlie": 2}


def values(bootstrap: str, results: str, isolation: str) -> list[str]:
    """What a reader sees, in the alphabet's order."""
    return sorted(
        (read.value or b"").decode() for read in read_all(bootstrap, results, isolation=isolation)
    )


def died(scene: Service) -> None:
    """Lets bravo kill its process, and waits until another runs."""
    pid = scene.worker(0)["pid"]
    (scene.folder / "now").touch()
    eventually(
        lambda: (row := scene.worker(0))["phase"] == "running" and row["pid"] != pid,
        what="the next life of the worker",
    )


def times(scene: Service, produced: list[Produced]) -> dict[str, int]:
    """How often each record's handler was begun."""
    names = {record.position: record.identity for record in produced}
    return dict(Counter(names[run.position] for run in invocations(scene.ledger)))
