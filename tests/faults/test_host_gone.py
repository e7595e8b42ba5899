"""A host that dies right after a record killed its worker: the next one knows of it by Redis."""

from collections.abc import Callable
from pathlib import Path

from kworker.clients.redis import RedisTexts
from tests.support import kafka, oracles
from tests.support.kafka import New, Writer, numbered
from tests.support.ledgers import Produced, invocations
from tests.support.service import Service, service
from tests.support.waiting import eventually

Topic = Callable[..., str]

# On the first host it hangs where it is tried, so that nothing is known of it but that it killed.
THERE = """
import ctypes
import time
from pathlib import Path
from tests.support.recorded import recorded

@recorded
def handle(message):
    if message.text() == "killer":
        met = Path(__file__).with_name("met")
        if met.exists():
            time.sleep(3600)
        met.touch()
        ctypes.string_at(0)
    time.sleep(0.01)
    return message.value
"""
HERE = THERE.replace("if met.exists()", "if False")
OTHERS = 300
CRASH_LIMIT = 2


def test_the_next_host_quarantines_the_last_hosts_killer(
    tmp_path: Path, bootstrap: str, redis_url: str, topic: Topic
) -> None:
    """Else one bad record would kill a worker of each host that its partition comes to."""
    source, dead = topic("gone", partitions=2), topic("gone-dead")
    name = f"proof-{source}"
    options = {"name": name, "settings": _settings(redis_url, dead)}
    writer = Writer(bootstrap, tmp_path / "produced")
    suspects = RedisTexts(redis_url, kind="suspects", prefix=f"kworker:{name}:")
    with (
        service(
            tmp_path / "a", bootstrap, [source], instance="a", handlers=THERE, **options
        ) as there,
        service(
            tmp_path / "b", bootstrap, [source], instance="b", handlers=HERE, **options
        ) as here,
    ):
        for host in (there, here):
            host.start()
        for host in (there, here):
            host.is_running()
        eventually(lambda: _shared(there, here), what="each host has a partition")
        [[(_, partition)]] = there.shares()
        killer = _write(writer, source, partition)
        eventually(suspects.get, what="its suspects are in Redis")
        there.end()
        here.caught_up()
        assert [row["restarts"] for row in here.workers().values()] == [0]
        eventually(lambda: suspects.get() == {}, what="nothing is suspected any more")
        cells = here.logged("isolated_pid")
        here.ends_well()
    suspects.close()
    [letter] = kafka.read_all(bootstrap, dead)
    assert (letter.source, letter.headers["kworker-reason"]) == (killer.position, b"crashed")
    runs = invocations(here.ledger)
    ran = [run.pid for run in runs if run.position == killer.position]
    assert len(ran) >= CRASH_LIMIT
    assert set(ran) <= cells, "it ran in a pool"
    others = [record for record in writer.acked if record != killer]
    assert oracles.lost(others, [*runs, *invocations(there.ledger)]) == []


def _settings(redis_url: str, dead: str) -> dict[str, dict[str, object]]:
    return {
        "workers": {"processes": 1, "threads": 4},
        "kafka.consumer": {"session.timeout.ms": 6000},
        "retry": {"delays": []},
        "dead_letter": {"topic": dead, "crash_limit": CRASH_LIMIT},
        "idempotency": {"redis": redis_url, "key": "key", "lease": "1s"},
    }


def _shared(*hosts: Service) -> bool:
    return all(list(map(len, host.shares())) == [1] for host in hosts)


def _write(writer: Writer, topic: str, partition: int) -> Produced:
    """Others, and among them one that kills; that one."""
    writer.write(topic, numbered(OTHERS, keys=2 * OTHERS))
    [killer] = writer.write(topic, [New("killer", b"killer", b"killer", partition)])
    writer.write(topic, numbered(OTHERS, keys=2 * OTHERS, first=OTHERS))
    return killer
