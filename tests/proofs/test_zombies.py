"""Workers that sleep through the end of their session: what they do on waking harms nobody."""

import os
import random
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.authors import Accepted, accepted, owners
from tests.support.evidence import Evidence, gather
from tests.support.fault_brokers import SESSION_MS, Proxied
from tests.support.kafka import Writer, create_topic, numbered
from tests.support.ledgers import STOPPED, At, Fault, now_ns
from tests.support.proxy import Api, Held
from tests.support.service import Service, lasting, service
from tests.support.waiting import eventually

# For a proof: so many of each, with seeds of their own.
ROUNDS = int(os.environ.get("PROOF_ZOMBIES", "0"))
RECORDS = 5_000
LATER = 500
BUSY = 20  # records in hand, as last told
WORKERS = 2
PARTITIONS = 3 * WORKERS  # so that each of them loses some to one worker more

SLOWISH = lasting(0.005)
CLASSIC = {"kafka.consumer": {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 500}}
MEMBERS: Mapping[str, dict[str, Any]] = {
    "dynamic": {"workers": {"membership": "dynamic"}, **CLASSIC},
    "static": {"workers": {"membership": "static"}, **CLASSIC},
    "kip-848": {
        "workers": {"membership": "dynamic"},
        "kafka.consumer": {"group.protocol": "consumer"},
    },
}
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
# What is under way when it is stopped; without a request, a transaction that is being filled.
MOMENTS: Mapping[str, tuple[str, Api | None]] = {
    "filling": (EXACTLY_ONCE, None),
    "positions": (EXACTLY_ONCE, Api.TXN_OFFSET_COMMIT),
    "end": (EXACTLY_ONCE, Api.END_TXN),
    "commit": (AT_LEAST_ONCE, Api.OFFSET_COMMIT),
}
FEW = [("dynamic", "filling"), ("static", "positions"), ("kip-848", "end"), ("dynamic", "commit")]
MANY = [(kind, moment) for kind in MEMBERS for moment in MOMENTS]
CASES = [(*case, seed) for seed in range(ROUNDS) for case in MANY] or [(*c, 0) for c in FEW]


@dataclass
class Zombie:
    """One worker of a service that was stopped, and what was going on then."""

    struck: Service
    slot: int
    fault: Fault
    held: Held | None

    @property
    def client(self) -> str:
        return _client(self.struck, self.slot)


@pytest.mark.parametrize(("kind", "moment", "seed"), CASES)
def test_a_worker_asleep_past_its_session_commits_nothing(
    tmp_path: Path, proxied: Proxied, kind: str, moment: str, seed: int
) -> None:
    """The worker does not commit another's partition, even as a member again. But a transaction
    whose positions the group had taken in time may end, and the next owner waits for that."""
    guarantee, _ = MOMENTS[moment]
    source, results = _topics(proxied, tmp_path)
    writer = Writer(proxied.bootstrap, tmp_path / "produced")
    with service(
        tmp_path / "service",
        proxied.bootstrap,
        [source],
        handlers=SLOWISH,
        settings=_settings(proxied, kind, guarantee, results),
    ) as struck:
        struck.serve()
        eventually(lambda: all(struck.shares()), what="both have some")
        writer.begin(source, numbered(RECORDS, keys=500))
        zombie = _stopped(struck, proxied, random.Random(seed).randrange(WORKERS), moment)
        _outlived(zombie, proxied)
        if zombie.held:
            zombie.held.release()
        other = 1 - zombie.slot
        eventually(lambda: len(struck.shares()[other]) == PARTITIONS, what="the other has all")
        _joined_by_another(zombie, proxied)
        _woken(zombie)
        _has_some(struck, proxied, zombie.slot)
        # Of the first ones nothing may be left by now; who commits nothing proves nothing.
        writer.begin(source, numbered(LATER, keys=500, first=RECORDS))
        writer.finish()
        struck.caught_up()
        assert struck.worker(zombie.slot)["pid"] == zombie.fault.pid
        struck.ends_well()
    found = gather(struck, writer.acked, results, exactly_once=guarantee == EXACTLY_ONCE)
    commits = accepted(proxied.bootstrap, proxied.data, struck.name)
    assert found.contradictions() == {}
    assert _intruders(zombie, commits, guarantee) == []
    _is_valid(zombie, moment, found)


def _topics(proxied: Proxied, tmp_path: Path) -> tuple[str, str]:
    name = tmp_path.name.replace("[", "-").replace("]", "")
    source = create_topic(proxied.bootstrap, name, PARTITIONS)
    results = create_topic(
        proxied.bootstrap, f"{name}-results", 2, message_timestamp_type="LogAppendTime"
    )
    return source, results


def _settings(
    proxied: Proxied, kind: str, guarantee: str, results: str
) -> dict[str, dict[str, Any]]:
    workers = {"processes": WORKERS, "threads": 8, **MEMBERS[kind]["workers"]}
    return {
        "kafka": {"bootstrap.servers": proxied.through},
        "kafka.consumer": MEMBERS[kind]["kafka.consumer"],
        "workers": workers,
        "delivery": {"results": results, "guarantee": guarantee, "commit_interval": "500ms"},
    }


def _stopped(struck: Service, proxied: Proxied, slot: int, moment: str) -> Zombie:
    """With so much in hand, and a transaction half written; or with a request on its way."""
    guarantee, api = MOMENTS[moment]
    proxy, client, pid = proxied.proxy, _client(struck, slot), struck.worker(slot)["pid"]
    eventually(partial(_at_work, struck, slot), every_s=0.01, what="it is at work")
    proxy.passes(Api.END_TXN if guarantee == EXACTLY_ONCE else Api.OFFSET_COMMIT, client)
    held = None
    if api is None:
        proxy.passes(Api.PRODUCE, client)
    else:
        held = proxy.hold(api, client)
        held.caught()
    from_ns = now_ns()
    os.kill(pid, signal.SIGSTOP)  # at once: while one asks about it, it may send its positions
    row = struck.worker(slot)
    partitions = tuple((topic, partition) for topic, partition in row["partitions"])
    fault = Fault(STOPPED, pid, slot, partitions, from_ns, from_ns, row["in_hand"])
    return Zombie(struck, slot, fault, held)


def _at_work(struck: Service, slot: int) -> bool:
    return bool(struck.worker(slot)["in_hand"] > BUSY)


def _outlived(zombie: Zombie, proxied: Proxied) -> None:
    """The group has given its partitions to the other: by its own log, for its member may wait."""

    def given() -> bool:
        own = _owners(zombie.struck, proxied)
        return len(own) == PARTITIONS and zombie.client not in own.values()

    eventually(given, every_s=0.2, what="the group is without it")


def _has_some(struck: Service, proxied: Proxied, slot: int) -> None:
    """The group has given it some, by its own log."""
    client = _client(struck, slot)
    what = f"worker {slot} has some"
    eventually(lambda: client in _owners(struck, proxied).values(), every_s=0.2, what=what)


def _owners(struck: Service, proxied: Proxied) -> dict[At, str]:
    found = owners(proxied.bootstrap, struck.name)
    return {at: who for at, who in found.items() if at[0] in struck.topics}


def _joined_by_another(zombie: Zombie, proxied: Proxied) -> None:
    """So that some of what it had does not come back to it."""
    zombie.struck.signal(signal.SIGTTIN)
    _has_some(zombie.struck, proxied, WORKERS)


def _woken(zombie: Zombie) -> None:
    # Noted first: it may go on before we do.
    zombie.fault = replace(zombie.fault, to_ns=now_ns())
    os.kill(zombie.fault.pid, signal.SIGCONT)
    zombie.struck.faults.add(zombie.fault)


def _is_valid(zombie: Zombie, moment: str, found: Evidence) -> None:
    """Something was in hand, and what was under way came to the end that it should."""
    assert found.repeated, "an invalid run: nothing was in hand when it was stopped"
    hidden = found.uncommitted_results - len(found.results)
    taken = zombie.held is not None and set(zombie.held.errors()) == {0}
    match moment:
        case "filling":
            assert hidden, "an invalid run: nothing was in an open transaction"
        case "positions":
            assert hidden
            assert not taken, "the group took positions of who was no member"
        case "end":
            assert taken, "its positions had been taken, and yet it was refused"
        case "commit":
            assert not taken, "the group took positions of who was no member"


def _intruders(zombie: Zombie, commits: list[Accepted], guarantee: str) -> list[Accepted]:
    """Commits of who did not have the partition then. What was never read has no author."""
    authored = [each for each in commits if each.commit.position]
    if guarantee == AT_LEAST_ONCE:  # of these the log has no author; the proxy knows of one
        return [each for each in authored if each.author]
    authors = {each.author for each in authored}
    assert authors >= {_client(zombie.struck, slot) for slot in range(WORKERS)}
    return [each for each in authored if each.author != each.owner]


def _client(struck: Service, slot: int) -> str:
    """Its client id, but for the host, and its transactional id as well."""
    return f"{struck.name}-here-{slot}"
