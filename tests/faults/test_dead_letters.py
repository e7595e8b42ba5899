"""Dead letters on a strict broker: byte for byte, not erased, and when they cannot be written."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from kworker.sandbox import Options, Sandbox
from tests.harness import oracles
from tests.harness.history import history
from tests.harness.kafka import New, Read, Writer, create_topic, read_all
from tests.harness.ledgers import At, Position, Produced
from tests.harness.service import Service, service
from tests.waiting import eventually

# Whoever has no rule may do everything; what is too old is looked for all the time.
STRICT = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "200",
}


@pytest.fixture(scope="module")
def strict(
    tmp_path_factory: pytest.TempPathFactory,
    free_port: Callable[[], int],
    guarded: Callable[[Path], None],
) -> Iterator[str]:
    """A broker of this module's own."""
    folder = tmp_path_factory.mktemp("strict")
    guarded(folder)
    sandbox = Sandbox(folder, Options(kafka_port=free_port(), redis=False, properties=STRICT))
    sandbox.up()
    yield sandbox.bootstrap
    sandbox.down(wipe=True)


def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})


# -- when they cannot be written -------------------------------------------------------------

REFUSING = """
from kworker import Reject
from tests.harness.recorded import recorded

@recorded
def handle(message):
    if message.value.startswith(b"bad"):
        raise Reject("bad")
    return message.value
"""
GOOD, PARTITIONS = 200, 4
BAD_IN = (0, 1)  # partitions


@contextmanager
def deleted(running: Service, dead: str) -> Iterator[None]:
    admin(running.bootstrap).delete_topics([dead])[dead].result(30)
    yield
    running.create_topics()


@contextmanager
def unauthorised(running: Service, dead: str) -> Iterator[None]:
    client = admin(running.bootstrap)
    rule = AclBinding(
        ResourceType.TOPIC,
        dead,
        ResourcePatternType.LITERAL,
        "User:*",
        "*",
        AclOperation.WRITE,
        AclPermissionType.DENY,
    )
    [made] = client.create_acls([rule]).values()
    made.result(30)
    yield
    its = AclBindingFilter(
        ResourceType.TOPIC,
        dead,
        ResourcePatternType.LITERAL,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    [gone] = client.delete_acls([its]).values()
    gone.result(30)


Break = Callable[[Service, str], AbstractContextManager[None]]


@pytest.mark.parametrize("broken", [deleted, unauthorised])
def test_while_they_cannot_be_written_their_partitions_wait_and_all_else_goes_on(
    tmp_path: Path, strict: str, broken: Break
) -> None:
    """P1 and P7: nothing is lost, it is red and says of which topic, and recovers by itself."""
    source = create_topic(strict, f"proof-{broken.__name__}", PARTITIONS)
    settings = {"workers": {"processes": 2, "threads": 4}, "retry": {"delays": []}}
    writer = Writer(strict, tmp_path / "produced")
    with service(
        tmp_path / "service", strict, [source], handlers=REFUSING, settings=settings
    ) as refusing:
        dead = f"{refusing.name}.dead"
        before = writer.write(source, mixed("before"))
        refusing.serve()
        refusing.caught_up()
        with broken(refusing, dead):
            during = writer.write(source, mixed("during"))
            eventually(lambda: says_why(refusing, dead), what="it is red, and says why")
            eventually(lambda: done(refusing) == 2 * GOOD, what="all the results")
            eventually(lambda: beyond(refusing, during) == set(), what="the others committed")
            assert short(refusing, during) == {(source, partition) for partition in BAD_IN}
        mended = time.monotonic()
        refusing.caught_up()
        print(f"{broken.__name__}: well again after {time.monotonic() - mended:.1f} s")
        eventually(lambda: refusing.status()["reasons"] == [], what="nothing is wrong any more")
        assert refusing.state() == "running"
        assert refusing.stop() == 0
    letters = read_all(strict, dead)
    told = Counter(letter.source for letter in letters if letter.source in positions(during))
    assert told == dict.fromkeys(positions(bad(during)), 1)
    assert unsafe(refusing, writer, letters, lost=bad(before)) == []


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


def unsafe(
    running: Service, writer: Writer, letters: Iterable[Read], *, lost: Iterable[Produced]
) -> list[Any]:
    """O3, with a dead letter for an end; those `lost` with their topic had theirs."""
    gone = positions(lost)
    known = [record for record in writer.acked if record.position not in gone]
    results = read_all(running.bootstrap, running.results)
    ends = oracles.first_results([*results, *letters])
    return oracles.unsafe(history(running.bootstrap, running.name), known, ends)
