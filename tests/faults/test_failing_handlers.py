"""Handlers that raise: what fails is held with its key, and stops neither others nor the drain."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from tests.support.evidence import gather
from tests.support.kafka import New, Writer
from tests.support.ledgers import Invocation, invocations
from tests.support.service import Service, service
from tests.support.waiting import eventually

Topic = Callable[..., str]

# "bad" works at its third run; "hopeless" works when somebody has mended it.
FAILING = """
from pathlib import Path
from tests.support.recorded import recorded

MENDED = Path(__file__).with_name("mended")

@recorded
def handle(message):
    if message.text() == "bad" and message.attempt < 3:
        raise ConnectionError("the billing service does not answer")
    if message.text() == "hopeless" and not MENDED.exists():
        raise ValueError("not a total")
    return message.value
"""
BACKOFF_S = (1.0, 2.0)
HOLD = {"mode": "hold", "delays": ["1s", "2s", "10m", "10m"]}
ONE_WORKER = {"processes": 1, "threads": 4}


def test_a_failing_record_is_held_and_only_its_key_waits(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str
) -> None:
    """For its delays, and what follows with its key stays behind it."""
    source = topic("proof", partitions=1)
    settings = {"workers": ONE_WORKER, "delivery": {"results": results}, "retry": HOLD}
    writer = Writer(bootstrap, tmp_path / "produced")
    writer.write(source, [New("bad", b"bad", b"k"), New("behind", b"behind", b"k")])
    writer.write(source, [New(f"{n}", b"%d" % n, b"key-%d" % n) for n in range(50)])
    with service(
        tmp_path / "service", bootstrap, [source], handlers=FAILING, settings=settings
    ) as failing:
        failing.serve()
        failing.caught_up()
        assert failing.counter("failed") == 2
        assert failing.stop() == 0
    found = gather(failing, writer.acked, results)
    bad, behind = (of(found.runs, offset) for offset in (0, 1))
    assert [run.attempt for run in bad] == [1, 2, 3]
    pauses = [(after.start_ns - (before.end_ns or 0)) / 1e9 for before, after in pairwise(bad)]
    assert all(pause >= least for pause, least in zip(pauses, BACKOFF_S, strict=True))
    assert behind[0].start_ns > (bad[2].end_ns or 0)
    others = [run for run in found.runs if run.offset > 1]
    assert max(run.end_ns or 0 for run in others) < bad[1].start_ns
    assert (found.contradictions(), found.repeated) == ({}, [])


def test_a_record_that_always_fails_stops_no_other_and_no_drain(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str
) -> None:
    """It stays uncommitted, and once its reason is mended the next start does it."""
    source = topic("proof", partitions=2)
    settings = {"workers": ONE_WORKER, "delivery": {"results": results}, "retry": HOLD}
    writer = Writer(bootstrap, tmp_path / "produced")
    writer.write(source, [New("hopeless", b"hopeless", b"h", 0)])
    writer.write(source, [New(f"{n}", b"%d" % n, b"key-%d" % n, n % 2) for n in range(100)])
    with service(
        tmp_path / "service", bootstrap, [source], handlers=FAILING, settings=settings
    ) as failing:
        failing.serve()
        eventually(lambda: len(ended(failing)) == 100, what="the others are done")
        eventually(lambda: failing.counter("failed") >= 2, what="it has failed again")
        assert failing.stop() == 0
        assert failing.committed() == {(source, 0): 0, (source, 1): 50}
        assert "Traceback" not in failing.said()
        assert "ValueError: not a total" in failing.said()
        (failing.folder / "mended").touch()
        failing.serve()
        failing.caught_up()
        failing.ends_well()
    found = gather(failing, writer.acked, results)
    assert (found.contradictions(), found.repeated) == ({}, [])


def of(runs: Sequence[Invocation], offset: int) -> list[Invocation]:
    return [run for run in runs if run.offset == offset]


def ended(running: Service) -> list[Invocation]:
    return [run for run in invocations(running.ledger) if run.ended]
