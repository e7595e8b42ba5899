"""A second copy of a service: the one that comes second is refused, and the first goes on."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kworker import host
from kworker.config import toml_file
from kworker.errors import ExitCode
from kworker.preflight import second_copy
from kworker.preflight.findings import exit_code
from tests.support.evidence import gather
from tests.support.fault_brokers import deny
from tests.support.kafka import Writer, numbered
from tests.support.service import OTHER_HOST, Service, service
from tests.support.waiting import eventually

Topic = Callable[..., str]

PORTION, KEYS = 20, 50
SESSION_S = 6.0  # the shortest that brokers allow
SETTINGS: dict[str, Any] = {
    "workers": {"processes": 1, "threads": 8},
    "kafka.consumer": {"heartbeat.interval.ms": 500, "session.timeout.ms": int(SESSION_S * 1000)},
}
MAYBE_DEAD = "if that host is dead, its session ends within 6 s"


def test_a_second_copy_on_the_host_is_refused(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str
) -> None:
    """The second copy never joins, so nothing is late; the first is back at once after a kill."""
    source, portions = topic("copies", partitions=4), itertools.count()
    settings = {**SETTINGS, "delivery": {"results": results}}
    writer = Writer(bootstrap, tmp_path / "produced")

    def meanwhile(condition: Callable[[], object], what: str) -> None:
        def fed() -> object:
            first = next(portions) * PORTION
            writer.begin(source, numbered(PORTION, keys=KEYS, first=first))
            return condition()

        eventually(fed, timeout_s=60, every_s=0.1, what=what)

    def copy(folder: str, **more: Any) -> Any:
        return service(tmp_path / folder, bootstrap, [source], settings=settings, **more)

    with copy("one") as one:
        shared: dict[str, Any] = {"name": one.name, "ledger": one.ledger}
        one.serve()
        rebalances = one.counter("rebalances")
        with copy("two", **shared) as two:
            two.start()
            meanwhile(lambda: two.process and two.process.poll() is not None, "it has ended")
            assert two.exit_code() == 73
            refusal = (
                f"instance: {one.name} runs on this host already as instance here, as pid"
                f" {one.pid}, with {one.config}; stop that copy, or give this one another name as"
                " its `instance`"
            )
            assert f"kworker: {refusal}\n" in two.said()
            told = two.command("check", "--online")
            assert told.returncode == 73, told.stdout
            assert refusal.partition("; ")[0] in told.stdout
        assert one.command("check", "--online").returncode == 0
        assert one.counter("rebalances") == rebalances
        with copy("three", instance="another", **shared) as three:
            three.start()
            meanwhile(lambda: [len(s) for s in one.shares() + three.shares()] == [2, 2], "shared")
            assert three.stop() == 0
        one.caught_up()
        one.kill_all()
        one.serve()
        assert MAYBE_DEAD not in one.said()
        writer.finish()
        one.caught_up()
        assert one.stop() == 0
    found = gather(one, writer.acked, results)
    begun = {run.position: run.start_ns for run in reversed(found.runs)}
    late_s = max((begun[record.position] - record.acked_ns) / 1e9 for record in writer.acked)
    print(
        f"{len(writer.acked)} records, the latest began {late_s:.2f} s after its writer heard of it"
    )
    assert late_s < SESSION_S
    assert found.contradictions() == {}


def test_a_copy_on_another_host_is_refused_while_the_first_lives(
    tmp_path: Path, bootstrap: str, topic: Topic
) -> None:
    """It cannot know at once which lives and which has died; the group does, in a session."""
    source = topic("copies", partitions=4)
    with service(tmp_path / "one", bootstrap, [source], settings=SETTINGS) as one:
        options: dict[str, Any] = {"name": one.name, "settings": SETTINGS, "prelude": OTHER_HOST}
        with service(tmp_path / "two", bootstrap, [source], **options) as two:
            one.serve()
            rebalances = one.counter("rebalances")
            two.start()
            two.until(lambda: two.state() == "waiting", "it waits")
            told = two.command("check", "--online")
            assert two.exit_code() == 73
            name = f"{one.name}-here-0"
            refusal = (
                f"instance: here is in use: {name} is a member of the group {one.name} from the"
                f" host 127.0.0.1 (client id {name}.{host.fingerprint()})"
            )
            assert f"waiting: {refusal}" in two.said()
            assert MAYBE_DEAD in two.said()
            step = "; stop that copy, or give this one another name as its `instance`\n"
            assert f"kworker: {refusal}{step}" in two.said()
            assert told.returncode == 73, told.stdout
            assert refusal in told.stdout
            assert (one.state(), one.counter("rebalances")) == ("running", rebalances)
            assert not _ever_joined(two)
            one.kill_all()
            two.serve()


def _ever_joined(copy: Service) -> bool:
    return "partitions assigned" in copy.said()


def test_a_start_without_group_rights_goes_on_with_a_warning(tmp_path: Path, strict: str) -> None:
    """A start must not need more rights than the work itself."""
    blind = Service(tmp_path / "one", strict, ["nowhere"])
    deny(strict, "GROUP", blind.name, "DESCRIBE", "PREFIXED")
    config = toml_file.load(blind.config)
    eventually(lambda: second_copy.search(config).findings, what="the rule holds")
    found = second_copy.search(config)
    assert (found.elsewhere, exit_code(found.findings)) == ([], ExitCode.OK)
    [finding] = found.findings
    assert str(finding).startswith("instance: the members of the consumer group cannot be listed (")
