"""Members join and leave while records are in hand: positions, results and runs stay right."""

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support import oracles
from tests.support.evidence import Evidence, gather
from tests.support.kafka import New, Writer
from tests.support.moves import Moves, again_in_one_process
from tests.support.service import Service, service
from tests.support.waiting import eventually

Topic = Callable[..., str]

# For a proof 50.
REBALANCES = int(os.environ.get("PROOF_REBALANCES", "4"))
WORKERS = 2  # and one more that joins and leaves
BUSY, IDLE = 6, 3  # partitions
A_TURN = 120  # records, of which some are in hand for longer than a rebalance takes
KEYS = 500

# What is stuck ends when all are spread anew, however long a process takes to join.
SLOW_AND_FAST = """
import time
from pathlib import Path
from tests.support.recorded import recorded

@recorded
def handle(message):
    kind, *turn = message.text().split("-")
    while kind == "stuck" and not Path(__file__).with_name(f"spread-{turn[0]}").exists():
        time.sleep(0.02)
    time.sleep(2.5 if kind == "slow" else 0.003)
    return message.value
"""


@pytest.mark.parametrize(
    ("membership", "consumer"),
    [
        pytest.param("dynamic", {"heartbeat.interval.ms": 500}, id="dynamic"),
        pytest.param("static", {"heartbeat.interval.ms": 500}, id="static"),
        pytest.param("dynamic", {"group.protocol": "consumer"}, id="consumer"),
    ],
)
def test_each_result_is_there_once_through_rebalances(
    tmp_path: Path,
    bootstrap: str,
    topic: Topic,
    results: str,
    membership: str,
    consumer: dict[str, Any],
) -> None:
    """Also of partitions that leave and come back with records in hand, and of idle ones."""
    busy, idle = topic("busy", partitions=BUSY), topic("idle", partitions=IDLE)
    settings = {
        "workers": {
            "processes": WORKERS,
            "threads": 8,
            "membership": membership,
            "revoke_timeout": "300ms",
        },
        "delivery": {"results": results, "guarantee": "exactly-once"},
        "kafka.consumer": consumer,
    }
    writer = Writer(bootstrap, tmp_path / "produced")
    with service(
        tmp_path / "service", bootstrap, [busy, idle], handlers=SLOW_AND_FAST, settings=settings
    ) as shaken:
        shaken.serve()
        writer.write(idle, [New("idle", b"idle", b"idle", 0)])  # and two that are empty
        eventually(lambda: spread_over(shaken, WORKERS), what="all have some")
        for turn in range(REBALANCES):
            writer.write(busy, mixed(turn))
            eventually(lambda: all_have_begun(shaken), every_s=0.01, what="all are at work")
            members = WORKERS + (turn + 1) % 2
            shaken.signal(signal.SIGTTOU if members == WORKERS else signal.SIGTTIN)
            spread = partial(spread_over, shaken, members)
            eventually(spread, timeout_s=60.0, what=f"spread over {members}")
            (shaken.folder / f"spread-{turn}").touch()
        shaken.caught_up()
        shaken.ends_well()
    moves = Moves.of(shaken)
    found = gather(shaken, writer.acked, results, exactly_once=True)
    late = moves.outlived(found.runs)
    back = [run for run in late if moves.returned(run)]
    print(
        f"{REBALANCES} rebalances: {len(writer.acked)} records, {len(found.runs)} runs, of which"
        f" {len(late)} outlived a revoke and {len(back)} of those had their partition back;"
        f" {len(found.repeated)} were runs of a record again, {len(found.commits)} commits"
    )
    assert late, "an invalid run: nothing was in hand when a partition went"
    assert back or "group.protocol" in consumer, "an invalid run: nothing came back"
    assert contradictions(found, moves) == {}


def spread_over(shaken: Service, members: int) -> bool:
    """So many have source partitions, and together each of them once."""
    shares = shaken.shares()
    owned = [at for share in shares for at in share]
    return len(shares) == members and all(shares) and len(owned) == len(set(owned)) == BUSY + IDLE


def all_have_begun(shaken: Service) -> bool:
    return all(row["in_hand"] for row in shaken.workers().values())


def mixed(turn: int) -> Iterator[New]:
    """To each partition one that lasts, and many that do not; whoever leaves must see it end."""
    lasting = "slow" if turn % 2 else "stuck"
    for number in range(turn * A_TURN, (turn + 1) * A_TURN):
        kind = lasting if number % A_TURN < BUSY else "fast"
        name = f"{kind}-{turn}-{number}"
        yield New(name, name.encode(), b"key-%d" % (number % KEYS), number % BUSY)


def contradictions(found: Evidence, moves: Moves) -> dict[str, object]:
    """Every oracle that does not hold, where a rebalance may explain a run again."""
    latest = oracles.Latest(found.commits)
    explained = {"repeated without a cause", "out of order"}
    wrong: dict[str, object] = {
        name: text for name, text in found.contradictions().items() if name not in explained
    }
    ends = found.ends
    wrong["beyond the end"] = [c for c in found.commits if c.position > ends.get(c.at, c.position)]
    # O5: its partition was taken away, and the group did not hold it as done.
    wrong["again without a cause"] = [
        pair
        for pair in found.repeated
        if moves.taken(pair[0], pair[1].start_ns) is None
        or latest.holds(pair[0].position, pair[1].start_ns)
    ]
    # O6 and one at a time: but for a handler that outlives a revoke; never within one process.
    wrong["at once"] = [
        (before, after)
        for before, after in oracles.disordered(found.runs)
        if before.pid == after.pid or before not in moves.outlived([before])
    ]
    # What is in hand is taken up where its partition returns.
    wrong["again though it was in hand"] = [
        pair for pair in again_in_one_process(found.runs) if moves.stayed(*pair)
    ]
    return {name: witnesses for name, witnesses in wrong.items() if witnesses}
