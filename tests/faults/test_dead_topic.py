"""The dead-letter topic is gone, or not ours to write: what is for it waits, all else goes on."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.support import oracles
from tests.support.fault_brokers import deny
from tests.support.history import Commit, history
from tests.support.kafka import New, Read, Writer, create_topic, delete_topic, read_all
from tests.support.ledgers import At, Position, Produced
from tests.support.service import Service, service
from tests.support.waiting import eventually

REFUSING = """
from kworker import Reject
from tests.support.recorded import recorded

@recorded
def handle(message):
    if message.value.startswith(b"bad"):
        raise Reject("bad")
    return message.value
"""
GOOD, PARTITIONS = 200, 4
BAD_IN = (0, 1)  # partitions


def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})


@contextmanager
def deleted(running: Service, dead: str) -> Iterator[None]:
    delete_topic(running.bootstrap, dead)
    yield
    running.create_topics()


@contextmanager
def unauthorised(running: Service, dead: str) -> Iterator[None]:
    client = admin(running.bootstrap)
    deny(running.bootstrap, "TOPIC", dead, "WRITE")
    eventually(lambda: refuses(client, dead), what="the broker goes by the rule")
    yield
    rules = ResourceType.TOPIC, dead, ResourcePatternType.LITERAL, None, None
    its = AclBindingFilter(*rules, AclOperation.ANY, AclPermissionType.ANY)
    [gone] = client.delete_acls([its]).values()
    gone.result(30)


def refuses(client: AdminClient, topic: str) -> bool:
    """Where there is a rule, the broker refuses what none allows: to describe it, too."""
    try:
        client.describe_topics(TopicCollection([topic]))[topic].result(30)
    except KafkaException as error:
        return bool(error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED)
    return False


Break = Callable[[Service, str], AbstractContextManager[None]]


class Run(NamedTuple):
    """One service that had to do without, at its end."""

    before: list[Produced]
    during: list[Produced]
    commits: list[Commit]
    results: list[Read]
    letters: list[Read]


@pytest.fixture(scope="module", autouse=True)
def running(
    tmp_path_factory: pytest.TempPathFactory, strict: str
) -> Iterator[dict[Break, "Future[Run]"]]:
    """Both at once: most of their time they wait."""
    with ThreadPoolExecutor() as pool:
        yield {
            broken: pool.submit(outage, broken, tmp_path_factory.mktemp(broken.__name__), strict)
            for broken in (deleted, unauthorised)
        }


def outage(broken: Break, folder: Path, bootstrap: str) -> Run:
    """Before it, all goes well; what is written meanwhile has bad records in some partitions."""
    source = create_topic(bootstrap, f"proof-{broken.__name__}", PARTITIONS)
    settings = {"workers": {"processes": 2, "threads": 4}, "retry": {"delays": []}}
    writer = Writer(bootstrap, folder / "produced")
    with service(
        folder / "service", bootstrap, [source], handlers=REFUSING, settings=settings
    ) as refusing:
        dead = f"{refusing.name}.dead"
        before = writer.write(source, mixed("before"))
        refusing.serve()
        refusing.caught_up()
        with broken(refusing, dead):
            during = writer.write(source, mixed("during"))
            refusing.until(lambda: says_why(refusing, dead), "it is red, and says why")
            eventually(lambda: done(refusing) == 2 * GOOD, what="all the results")
            eventually(lambda: beyond(refusing, during) == set(), what="the others committed")
            assert short(refusing, during) == {(source, partition) for partition in BAD_IN}
        mended = time.monotonic()
        refusing.caught_up()
        print(f"{broken.__name__}: well again after {time.monotonic() - mended:.1f} s")
        eventually(lambda: refusing.status()["reasons"] == [], what="nothing is wrong any more")
        assert refusing.state() == "running"
        assert refusing.stop() == 0
    return Run(
        before,
        during,
        history(bootstrap, refusing.name),
        read_all(bootstrap, refusing.results),
        read_all(bootstrap, dead),
    )


@pytest.mark.parametrize("broken", [deleted, unauthorised])
def test_an_unwritable_own_topic_holds_back_only_its_records(
    running: dict[Break, "Future[Run]"], broken: Break
) -> None:
    """Nothing is lost; the service is red, names the topic, and recovers by itself."""
    run = running[broken].result()
    everything = [*run.before, *run.during]
    results = Counter(read.source for read in run.results)
    assert results == dict.fromkeys(positions(everything) - positions(bad(everything)), 1)
    mine = [each for each in run.letters if each.source in positions(run.during)]
    assert Counter(each.source for each in mine) == dict.fromkeys(positions(bad(run.during)), 1)
    # O3, with a dead letter for an end. Of those before, a deleted topic tells nothing any more.
    ends = oracles.first_results([*run.results, *run.letters])
    known = [each for each in everything if each.position not in positions(bad(run.before))]
    assert oracles.unsafe(run.commits, known, ends) == []


def mixed(prefix: str) -> Iterator[New]:
    """In each partition good ones, and in some of them a bad one in their midst."""
    for n in range(GOOD):
        name = f"{prefix}-{n}"
        yield New(name, name.encode(), name.encode(), n % PARTITIONS)
        if n // PARTITIONS == 10 and n % PARTITIONS in BAD_IN:
            yield New(f"bad {name}", f"bad {name}".encode(), b"bad", n % PARTITIONS)


def bad(records: Iterable[Produced]) -> list[Produced]:
    return [record for record in records if record.identity.startswith("bad")]


def positions(records: Iterable[Produced]) -> set[Position]:
    return {record.position for record in records}


def says_why(running: Service, topic: str) -> bool:
    status = running.status()
    return status["state"] == "red" and any(topic in reason for reason in status["reasons"])


def done(running: Service) -> int:
    """Records with a result."""
    return len({read.source for read in read_all(running.bootstrap, running.results)})


def short(running: Service, records: Iterable[Produced]) -> set[At]:
    """Partitions committed no further than their bad record."""
    committed = running.committed()
    return {record.at for record in bad(records) if committed[record.at] <= record.offset}


def beyond(running: Service, records: Sequence[Produced]) -> set[At]:
    """Partitions without a bad record that are not committed to their end."""
    committed = running.committed()
    waiting = {record.at for record in bad(records)}
    return {r.at for r in records if r.at not in waiting and committed[r.at] <= r.offset}
