"""`kill -9` of workers under load: nothing is lost, and what repeats has its kill."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from tests.support.evidence import Evidence, gather
from tests.support.kafka import New, Writer, numbered
from tests.support.ledgers import At, Fault
from tests.support.service import Service, lasting, service
from tests.support.waiting import eventually

Topic = Callable[..., str]

KILLS = 20  # that hit something: one may come when all that had begun has ended
TRIES = 2 * KILLS
IN_A_ROW = 3  # the last ones, of one slot
RECORDS = 100_000
PORTION, MORE = 3_000, 400  # before each kill, and whenever too little is in hand for it
BUSY = 50  # records in flight as last told, of which some are still so when the kill comes
WORKERS = 4
SERVED_S = 2.0  # or as long as a start of the service took, where machines are busy
SERIES_S = 10.0  # deaths of a slot that are closer together are answered with a back-off
SERIES_FREE = 2  # the first of a series are not

# Slow enough that a kill finds something in hand, fast enough for 100,000.
SLOWISH = lasting(0.004)


def test_20_kills_in_100_000_records_lose_nothing(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str
) -> None:
    """The promise of at-least-once, with every repeat accounted for and the gaps short."""
    source = topic("proof", partitions=2 * WORKERS)
    settings = {
        "workers": {"processes": WORKERS, "threads": 8},
        "delivery": {"results": results},
    }
    writer = Writer(bootstrap, tmp_path / "produced")
    with service(
        tmp_path / "service", bootstrap, [source], handlers=SLOWISH, settings=settings
    ) as struck:
        began = time.monotonic()
        struck.serve()
        start_s = time.monotonic() - began
        stream = numbered(10 * RECORDS, keys=800)  # more than any run takes
        hits = 0
        while hits < KILLS:
            kills = struck.faults.faults
            assert len(kills) < TRIES, f"of {TRIES} kills {hits} hit something"
            slot = _victim(kills, hits)
            writer.begin(source, islice(stream, PORTION))
            eventually(partial(_at_work, struck, slot, writer, source, stream), every_s=0.01)
            hits += struck.cut_off(struck.kill_worker(slot).pid) > 0
            writer.finish()
        writer.write(source, islice(stream, max(0, RECORDS - len(writer.acked))))
        struck.caught_up()
        struck.ends_well()
    found = gather(struck, writer.acked, results)
    assert len(found.produced) >= RECORDS
    assert len({fault.pid for fault in found.faults}) == len(found.faults)
    assert found.contradictions() == {}
    assert _served_too_late(found, max(SERVED_S, start_s)) == []


def _victim(faults: Sequence[Fault], hits: int) -> int:
    """Slots in turn, each again when its last but one death is out of the series; then one."""
    if hits > KILLS - IN_A_ROW:
        return faults[-1].slot
    slot = len(faults) % WORKERS
    deaths = [fault.to_ns / 1e9 for fault in faults if fault.slot == slot]
    if len(deaths) >= SERIES_FREE:
        eventually(lambda: time.time() - deaths[-SERIES_FREE] > SERIES_S, what="a new series")
    return slot


def _at_work(struck: Service, slot: int, writer: Writer, topic: str, stream: Iterator[New]) -> bool:
    """Whether a worker has records without an outcome. Feeds it when it runs dry.

    And whether all of them run: how long a gap lasts is judged of one kill at a time.
    """
    rows = struck.workers()
    killed = {fault.pid for fault in struck.faults.faults}  # and perhaps not yet missed
    running = [r for r in rows.values() if r["phase"] == "running" and r["pid"] not in killed]
    if len(running) < WORKERS:
        return False
    row = rows[slot]
    if row["in_flight"] < BUSY:
        writer.begin(topic, islice(stream, MORE))
    return bool(row["in_flight"] >= BUSY)


def _served_too_late(found: Evidence, within_s: float) -> list[tuple[Fault, float]]:
    """Kills after which a partition with a backlog stood still for longer than it may.

    That is much less than the session's time-out, after which the others would have it.
    """
    gaps = [(fault, _gap_s(found, fault)) for fault in found.faults]
    print(f"seconds until served, of {within_s:.1f}:", [round(gap, 2) for _, gap in gaps])
    return [(fault, gap) for fault, gap in gaps if gap > within_s + _backoff_s(found, fault)]


def _gap_s(found: Evidence, fault: Fault) -> float:
    """Until the last of its partitions was served again, as far as something waited there.

    Or until the slot was killed again: from then on the time is that kill's. Records with the
    key of a suspect wait for its process: where nothing else waited, any record's run serves.
    """
    killed_again = [
        f.from_ns for f in found.faults if f.slot == fault.slot and f.from_ns > fault.to_ns
    ]
    until_ns = min(killed_again, default=time.time_ns())
    waiting = {
        record.position
        for record in found.produced
        if record.at in fault.partitions and record.acked_ns < fault.from_ns
    }
    waiting |= {run.position for run in found.runs if run.pid == fault.pid}
    later = [run for run in found.runs if run.start_ns > fault.to_ns]
    waited = [run for run in later if run.position in waiting]
    suspected = _suspected(found, fault)
    free = [run for run in waited if (run.at, run.key) not in suspected]
    blocked = {run.at for run in waited} - {run.at for run in free}
    served: dict[At, int] = {}
    for run in [*free, *(run for run in later if run.at in blocked)]:
        served.setdefault(run.at, run.start_ns)
    ends = [min(at_ns, until_ns) - fault.to_ns for at_ns in served.values()]
    return max(ends, default=0) / 1e9


def _suspected(found: Evidence, fault: Fault) -> set[tuple[At, str]]:
    """The keys, in their partitions, of runs cut off by this kill or earlier, and not ended yet."""
    ended = {
        run.position for run in found.runs if run.end_ns is not None and run.end_ns < fault.from_ns
    }
    return {
        (run.at, run.key)
        for run in found.runs
        if run.end_ns is None and run.start_ns < fault.to_ns and run.position not in ended
    }


def _backoff_s(found: Evidence, fault: Fault) -> float:
    """A second from the third death within a series' time, doubled with each further one."""
    deaths = [
        other.to_ns / 1e9
        for other in found.faults
        if other.slot == fault.slot and other.to_ns <= fault.to_ns
    ]
    delay_s = 0.0
    for death in deaths:
        nth = sum(0 <= death - earlier < SERIES_S for earlier in deaths)
        delay_s = (2 * delay_s or 1.0) if nth > SERIES_FREE else 0.0
    return delay_s
