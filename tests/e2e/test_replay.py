"""`kworker replay` on real Kafka and Redis: exactly the events of a range, beside the service."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tests.support import kafka, recorded
from tests.support.kafka import Read
from tests.support.ledgers import Invocation, invocations
from tests.support.service import COMMAND, ROOT, Service, service
from tests.support.waiting import eventually

Topic = Callable[..., str]
Ran = subprocess.CompletedProcess[str]

MINUTE_MS = 60_000
BEGIN_MS = int(time.time() * 1000) // MINUTE_MS * MINUTE_MS - 300 * MINUTE_MS
RECORDS = 20  # of a partition, a minute apart, but that every fifth is out of its time
REPLAY = "kworker-replay"
END_TIMEOUT_S = 60.0

# What the files beside it say, so that a test can change it for a replay.
HANDLER = """
import os
import time
from pathlib import Path
from kworker import Reject
from tests.support.recorded import recorded

HERE = Path(__file__).parent

@recorded
def handle(message):
    text = message.text()
    while (HERE / "wait").exists() or text in words("stuck"):
        time.sleep(0.01)
    if text in words("fails") and message.attempt < 3:
        raise ConnectionError("not yet")
    if text in words("dies"):
        raise Reject("a customer of whom nobody knows")
    return bytes(2_000_000) if text in words("swells") else text.encode()

def words(name):
    file = HERE / name
    return file.read_text().split() if file.exists() else ()
"""
SETTINGS = {"retry": {"delays": ["200ms", "400ms"]}, "workers": {"processes": 1, "threads": 4}}


def write(bootstrap: str, source: str, *minutes: int, partition: int = 0) -> None:
    """Records `partition-minute`, stamped so many minutes after BEGIN_MS."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for minute in minutes:
        stamp, value = BEGIN_MS + minute * MINUTE_MS, f"{partition}-{minute}"
        producer.produce(source, value, f"key-{minute % 7}", partition, timestamp=stamp)
    assert producer.flush(30) == 0


@pytest.fixture
def source(bootstrap: str, topic: Topic) -> str:
    """Two partitions; by its offset a record's minute is `offset`, or `20 - offset`."""
    source = topic("past", partitions=2)
    minutes = [offset if offset % 5 else RECORDS - offset for offset in range(RECORDS)]
    for partition in (0, 1):
        write(bootstrap, source, *minutes, partition=partition)
    return source


@pytest.fixture
def live(tmp_path: Path, bootstrap: str, source: str) -> Iterator[Service]:
    """A service that has done all of it."""
    options: dict[str, Any] = {"handlers": HANDLER, "settings": SETTINGS}
    with service(tmp_path / "service", bootstrap, [source], **options) as live:
        live.serve()
        live.caught_up()
        yield live


def span(first: int, last: int) -> tuple[str, ...]:
    """From one minute up to another, without the latter."""
    return (
        *("--from", str(BEGIN_MS + first * MINUTE_MS)),
        *("--to", str(BEGIN_MS + last * MINUTE_MS)),
    )


def replay(live: Service, *options: str) -> dict[str, Any]:
    """Runs one to its end, which has nothing to warn of; what it reports."""
    done = live.command("replay", *options, "--json")
    assert done.returncode == 0, done.stderr
    assert "the brokers do not tell" not in done.stderr  # a replay does not ask
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def values(results: list[Read]) -> list[str]:
    return sorted((read.value or b"").decode() for read in results)


def results_of(live: Service, identity: str) -> list[Read]:
    """Those that bear the replay's id."""
    found = kafka.read_all(live.bootstrap, live.results)
    return [read for read in found if read.headers.get(REPLAY) == identity.encode()]


def replayed_runs(live: Service) -> list[Invocation]:
    """Those by processes that are not the service's."""
    workers = set(live.worker_pids().values())
    return [run for run in invocations(live.ledger) if run.pid not in workers]


def groups(live: Service) -> set[str]:
    """The groups of replays that the brokers know."""
    admin = AdminClient({"bootstrap.servers": live.bootstrap})
    listed = admin.list_consumer_groups(request_timeout=30).result(30)
    names = {group.group_id for group in listed.valid}
    assert live.name in names
    return {name for name in names if name.startswith(f"{live.name}.replay.")}


def assignments(live: Service) -> int:
    """How often a worker was given partitions; the delay process joins when it has time to."""
    return live.said().count('"event":"partitions assigned","worker"')


def test_a_replay_runs_settled_records_and_not_a_stuck_one(live: Service, source: str) -> None:
    """Position and map tell what is settled; the rest is in the service's hands."""
    (live.folder / "stuck").write_text("0-30")
    write(live.bootstrap, source, 30, 31, 32, 33)
    eventually(lambda: live.finished((source, 0)) == RECORDS + 3, what="the others are done")
    assert live.committed()[source, 0] == RECORDS
    report = replay(live, *span(29, 40))
    assert values(results_of(live, report["replay"])) == ["0-31", "0-32", "0-33"]
    (live.folder / "stuck").unlink()
    live.caught_up()


def test_exactly_the_events_of_the_range_run_again(live: Service) -> None:
    """Beside the service, whose positions, members and topics for retries do not change."""
    before, pids, rebalanced = live.committed(), live.worker_pids(), assignments(live)
    report = replay(live, *span(3, 12))
    wanted = sorted(f"{p}-{m}" for p in (0, 1) for m in [3, 4, 5, 6, 7, 8, 9, 10, 11])
    assert values(results_of(live, report["replay"])) == wanted
    assert len(replayed_runs(live)) == len(wanted)
    assert (report["replayed"], report["dead"], report["failed"]) == (len(wanted), 0, 0)
    live_results = [
        r for r in kafka.read_all(live.bootstrap, live.results) if REPLAY not in r.headers
    ]
    assert len(live_results) == 2 * RECORDS
    assert (live.committed(), live.worker_pids()) == (before, pids)
    assert assignments(live) == rebalanced
    assert groups(live) == set()


ASYNC = """
async def handle(message):
    return message.value
"""
BATCHES = """
from kworker import batch

@batch(size=8, wait="50ms")
def handle(messages):
    return [message.value for message in messages]
"""
NEW_PROTOCOL = {
    "kafka": {"group.protocol": "consumer"},
    "workers": {**SETTINGS["workers"], "membership": "dynamic"},
}


@pytest.mark.parametrize(
    ("handlers", "settings"),
    [(ASYNC, {}), (BATCHES, {}), (HANDLER, NEW_PROTOCOL)],
    ids=["async", "batches", "new-protocol"],
)
def test_every_kind_of_handler_and_of_group_can_be_replayed(
    tmp_path: Path, bootstrap: str, source: str, handlers: str, settings: dict[str, Any]
) -> None:
    """The service's members may speak the newer protocol, which takes positions from members."""
    options: dict[str, Any] = {"handlers": handlers, "settings": {**SETTINGS, **settings}}
    with service(tmp_path / "service", bootstrap, [source], **options) as live:
        live.serve()
        live.caught_up()
        report = replay(live, *span(3, 12))
        assert report["replayed"] == 18
        assert len(results_of(live, report["replay"])) == 18
        assert groups(live) == set()


def test_a_replay_leaves_unsettled_records_to_the_service(live: Service) -> None:
    """A replay while it is stopped must not run what it will run when it is back."""
    assert live.stop() == 0
    write(live.bootstrap, live.topics[0], 5, 6, partition=1)
    report = replay(live, "--all")
    assert report["replayed"] == 2 * RECORDS
    assert values(results_of(live, report["replay"])).count("1-5") == 1
    live.serve()
    eventually(lambda: live.counter("done") == 2, what="these two alone")
    live.caught_up()
    assert live.counter("done") == 2


def test_a_replay_retries_in_place_and_writes_dead_letters(live: Service) -> None:
    """Nothing of it reaches the service, and the dead letter says of which replay it is."""
    (live.folder / "fails").write_text("0-6")
    (live.folder / "dies").write_text("1-7")
    report = replay(live, *span(6, 8))
    assert (report["replayed"], report["dead"], report["failed"]) == (3, 1, 3)
    runs = [run for run in replayed_runs(live) if run.position == (live.topics[0], 0, 6)]
    assert [run.attempt for run in runs] == [1, 2, 3]
    first, second, third = runs
    assert second.start_ns - (first.end_ns or 0) >= 200_000_000
    assert third.start_ns - (second.end_ns or 0) >= 400_000_000
    for delay in ("200ms", "400ms"):
        assert kafka.read_all(live.bootstrap, f"{live.name}.retry.{delay}") == []
    [dead] = kafka.read_all(live.bootstrap, f"{live.name}.dead")
    assert dead.value == b"1-7"
    assert dead.headers[REPLAY] == report["replay"].encode()
    assert groups(live) == set()


def test_a_redriven_dead_letter_of_a_replay_is_no_live_result(live: Service) -> None:
    """A table has the row of its first result, and would take another one."""
    (live.folder / "dies").write_text("1-7")
    identity = replay(live, *span(7, 8))["replay"]
    (live.folder / "dies").unlink()
    assert live.command("dead", "redrive").returncode == 0
    eventually(lambda: "1-7" in values(results_of(live, identity)), what="it runs again")
    found = [r for r in kafka.read_all(live.bootstrap, live.results) if r.value == b"1-7"]
    assert [REPLAY in read.headers for read in found] == [False, True]


def test_a_result_too_large_does_not_hold_up_a_replay(live: Service) -> None:
    """It waits until the brokers have told the topic's limit again, and is dead then."""
    (live.folder / "swells").write_text("0-6")
    report = replay(live, *span(6, 8))
    assert (report["replayed"], report["dead"]) == (3, 1)
    [dead] = kafka.read_all(live.bootstrap, f"{live.name}.dead")
    assert dead.headers["kworker-reason"] == b"unpublishable"


def test_a_replay_of_mostly_poison_ends(tmp_path: Path, bootstrap: str, source: str) -> None:
    """No breaker holds its dead letters: nobody could tell it to go on."""
    careful = {**SETTINGS, "dead_letter": {"breaker": "50% of 10"}}
    options: dict[str, Any] = {"handlers": HANDLER, "settings": careful}
    with service(tmp_path / "service", bootstrap, [source], **options) as live:
        live.serve()
        live.caught_up()
        words = [f"{partition}-{minute}" for partition in (0, 1) for minute in range(RECORDS + 1)]
        (live.folder / "dies").write_text(" ".join(words))
        assert replay(live, "--all")["dead"] == 2 * RECORDS


def test_a_replay_with_idempotency_runs_only_undone_events(
    tmp_path: Path, bootstrap: str, redis_url: str, source: str
) -> None:
    """Rejected once, and the reason is mended: that is the first time that these are done."""
    seen = {"idempotency": {"redis": redis_url, "key": "identities:of"}}
    options: dict[str, Any] = {"handlers": HANDLER, "settings": {**SETTINGS, **seen}}
    with service(tmp_path / "service", bootstrap, [source], **options) as live:
        (live.folder / "identities.py").write_text("def of(message): return message.text()\n")
        (live.folder / "dies").write_text("0-6 1-7")
        live.serve()
        live.caught_up()
        eventually(lambda: live.counter("dead") == 2, what="both are dead letters")
        (live.folder / "dies").unlink()
        report = replay(live, "--all")
        assert (report["replayed"], report["skipped"]) == (2, 2 * RECORDS - 2)
        assert results_of(live, report["replay"]) == []
        found = kafka.read_all(bootstrap, live.results)
        assert len({read.source for read in found}) == len(found) == 2 * RECORDS
        assert not any(REPLAY in read.headers for read in found)
        again = replay(live, "--all")
        assert (again["replayed"], again["skipped"]) == (0, 2 * RECORDS)
        forced = replay(live, *span(6, 8), "--force")
        assert (forced["replayed"], forced["skipped"]) == (4, 0)
        assert values(results_of(live, forced["replay"])) == ["0-6", "0-7", "1-6", "1-7"]


@contextmanager
def replaying(live: Service, *options: str) -> Iterator[subprocess.Popen[str]]:
    """One whose handlers wait while there is the file `wait`; it has begun some."""
    wait = live.folder / "wait"
    wait.touch()
    process = subprocess.Popen(
        [*COMMAND, "replay", *options, "--config", str(live.config)],
        cwd=live.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), recorded.FOLDER: str(live.ledger)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        eventually(lambda: len(replayed_runs(live)) == 4, what="each thread has one")
        yield process
    finally:
        process.kill()
        process.communicate()


def test_an_interrupted_replay_finishes_its_running_records(live: Service) -> None:
    """And begins nothing more; its group, which is there meanwhile, is gone."""
    with replaying(live, "--all") as process:
        process.send_signal(signal.SIGINT)
        (live.folder / "wait").unlink()
        said, told = process.communicate(timeout=END_TIMEOUT_S)
    assert process.returncode == 130
    assert "interrupted: waiting for the records in hand" in told
    identity = said.split()[1]
    assert said.startswith(f"replay {identity} of {live.name}: ")
    ended = [run.position for run in replayed_runs(live) if run.ended]
    assert 4 <= len(ended) < 2 * RECORDS
    assert sorted(read.source for read in results_of(live, identity)) == sorted(ended)
    assert groups(live) == set()


def test_a_second_interrupt_ends_a_replay_at_once(live: Service) -> None:
    """Its handlers are still at work when it has ended."""
    with replaying(live, "--all") as process:
        process.send_signal(signal.SIGINT)
        assert process.stderr
        eventually(lambda: "waiting for the records in hand" in process.stderr.readline())
        process.send_signal(signal.SIGINT)
        said, told = process.communicate(timeout=END_TIMEOUT_S)
    assert process.returncode == 130
    assert "records in hand did not end" in told
    assert ": 0 replayed" in said


def test_a_replays_group_shows_its_progress(live: Service) -> None:
    """To whatever tells of lag; deleted in the end."""
    (live.folder / "fails").write_text("0-19")
    with replaying(live, "--all") as process:
        (live.folder / "wait").unlink()
        [group] = eventually(lambda: groups(live), what="its group")
        assert kafka.committed(live.bootstrap, group).keys() <= {
            (live.topics[0], p) for p in (0, 1)
        }
        said, _ = process.communicate(timeout=END_TIMEOUT_S)
    assert process.returncode == 0
    assert f"{2 * RECORDS} replayed" in said
    assert groups(live) == set()


def test_a_dry_run_tells_what_would_be_read_and_runs_nothing(live: Service) -> None:
    """Times go back and forth, so all that may hold one of that time is read, and counted."""
    told = json.loads(live.command("replay", *span(18, 20), "--dry-run", "--json").stdout)
    rows = [(row["topic"], row["partition"], row["from"], row["to"]) for row in told["partitions"]]
    # The record of minute 20 is the first one: where no later one is, it begins there.
    assert rows == [(live.topics[0], p, 0, RECORDS) for p in (0, 1)]
    assert told["records_max"] == 2 * RECORDS
    assert [row["records"] for row in told["partitions"]] == [2, 2]
    assert told["records"] == 4
    shown = live.command("replay", *span(3, 5), "--dry-run").stdout
    # Minutes 3 and 4 come first, and minute 5 at offset 15.
    assert shown.splitlines()[-1] == "4 records would be replayed"
    shown = live.command("replay", "--all", "--dry-run").stdout
    assert shown.splitlines()[-1] == "at most 40 records would be replayed"
    assert replayed_runs(live) == []


def test_nothing_to_replay_is_no_failure(live: Service) -> None:
    done = live.command("replay", "--from", "-0s", "--to", str(int(time.time() * 1000) + 10**6))
    assert done.returncode == 0
    assert done.stdout == f"nothing to replay: {live.name} has settled no record of that time\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "expected --from and --to, or --all"),
        (("--from", "-2h"), "expected --from and --to, or --all"),
        (("--all", "--from", "-2h"), "expected --from and --to, or --all"),
        (("--from", "-1h", "--to", "-2h"), "--to -2h must be later than --from -1h"),
        (
            ("--from", "soon", "--to", "-2h"),
            "the value of --from is wrong: expected a time in ISO 8601",
        ),
    ],
)
def test_an_invalid_range_is_refused_in_one_line(
    tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    """In one line, before anything is asked."""
    never = Service(tmp_path / "service", "127.0.0.1:9", ["past"])
    done = never.command("replay", *options)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert words in line


def test_a_handler_that_cannot_be_imported_is_told(live: Service) -> None:
    live.write_handlers("import nothing_of_that_name\n")
    done = live.command("replay", "--all")
    assert done.returncode == 78
    assert "nothing_of_that_name" in done.stderr
    assert "Traceback" not in done.stderr
