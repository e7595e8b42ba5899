"""One leader among several Spark jobs of a service, on real brokers."""

import json
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from kworker.clients.leader import CLOSE_TIMEOUT_S, Leadership
from kworker.config.client_properties import admin_properties, leader_properties
from kworker.config.model import Config
from kworker.sandbox import Sandbox
from tests.support import raw_commit
from tests.support.fault_brokers import deny
from tests.support.kafka import SEVERE, create_topic, delete_topic, held_of, make_again
from tests.support.leader_candidate import Candidate, now
from tests.support.waiting import eventually

Topic = Callable[..., str]

SESSION_S = 6.0  # the shortest that brokers allow by default
LONG_S, SOON_S = 40.0, 15.0  # a session, and what is far less: this machine may be busy
HERE = f"process {os.getpid()} on {socket.gethostname()}"


class Service:
    """The jobs of one service; each is ended with the test, and turns when the test waits."""

    def __init__(
        self, bootstrap: str, topic: str, ends: ExitStack, session_s: float = SESSION_S
    ) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.name = f"service-{uuid.uuid4().hex[:10]}"
        self.group = f"{self.name}.spark"
        self.jobs: list[Leadership] = []
        self._session_ms = int(session_s * 1000)
        self._ends = ends
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": SEVERE})

    def properties(self, instance: str = "here") -> tuple[dict[str, Any], dict[str, Any]]:
        config = Config.model_validate(
            {
                "name": self.name,
                "handler": "h:f",
                "instance": instance,
                "file": Path("kworker.toml"),
                "source": {"topics": ["orders"]},
                "kafka": {
                    "common": {"bootstrap.servers": self.bootstrap},
                    "consumer": {"session.timeout.ms": self._session_ms},
                },
            }
        )
        return leader_properties(config), admin_properties(config)

    def job(self, instance: str = "here") -> Leadership:
        job = Leadership(*self.properties(instance), self.topic)
        self.jobs.append(job)
        self._ends.callback(self.end, job)
        return job

    def apart(self, told: Path, instance: str = "here") -> Candidate:
        """A job in its own process."""
        candidate = Candidate(*self.properties(instance), self.topic, told)
        self._ends.callback(candidate.end)
        return candidate

    def end(self, job: Leadership) -> None:
        if job in self.jobs:
            self.jobs.remove(job)
            job.close()

    def until(
        self, condition: Callable[[], object], timeout_s: float = 30.0, what: str = ""
    ) -> float:
        """Lets all turn until the condition holds; the seconds that it took. Never do two lead."""
        began = time.monotonic()

        def turned() -> object:
            for job in list(self.jobs):
                job.turn()
            leading = [job for job in self.jobs if job.leads]
            assert len(leading) <= 1
            return condition()

        try:
            eventually(turned, timeout_s=timeout_s, what=what)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.told()}") from error
        return time.monotonic() - began

    def goes_on(self, seconds: float, condition: Callable[[], object]) -> None:
        """The condition holds at every turn for so long."""
        until = time.monotonic() + seconds

        def over() -> bool:
            assert condition(), self.told()
            return time.monotonic() >= until

        self.until(over, timeout_s=seconds + 30)

    def told(self) -> list[tuple[bool, str, str]]:
        """What each job says of itself."""
        return [(job.leads, job.leader, job.problem) for job in self.jobs]

    def leading(self, instance: str = "here") -> Leadership:
        """The first job, which leads."""
        job = self.job(instance)
        self.until(lambda: job.leads, what="the only one leads")
        return job

    def standby(self, instance: str = "there") -> Leadership:
        """Another, which knows the leader."""
        job = self.job(instance)
        self.until(lambda: job.leader == HERE and self.members() == len(self.jobs))
        return job

    def members(self) -> int:
        """How many share the partitions; none during a rebalance."""
        found = self._admin.describe_consumer_groups([self.group])[self.group].result(10)
        return len(found.members) if found.state == ConsumerGroupState.STABLE else 0

    def stranger(self) -> Consumer:
        """A client that speaks of the group; a member once it subscribes."""
        stranger = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "log_level": SEVERE,
                "group.id": self.group,
                "client.id": "stranger",
                "enable.auto.commit": False,
                "session.timeout.ms": self._session_ms,
                "heartbeat.interval.ms": 500,
            }
        )
        self._ends.callback(stranger.close)
        return stranger

    def held(self) -> str:
        """The metadata of the group's commit."""
        [place] = held_of(self.bootstrap, self.group, self.topic)[:1]
        return place.metadata or ""


@pytest.fixture
def ends() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def service(bootstrap: str, topic: Topic, ends: ExitStack) -> Service:
    return Service(bootstrap, topic("results", partitions=2), ends)


def test_one_of_two_leads_and_the_other_names_it(service: Service) -> None:
    """Which of them, the group decides; both begin at once."""
    first, second = service.job(), service.job("there")
    service.until(lambda: first.leads or second.leads)
    service.until(lambda: first.leader == second.leader == HERE)
    service.goes_on(2.0, lambda: first.leads is not second.leads)
    assert (first.problem, second.problem) == ("", "")


def test_a_leader_that_closes_is_followed_within_seconds(
    bootstrap: str, topic: Topic, ends: ExitStack
) -> None:
    """It leaves the group, and nobody waits for the end of its session."""
    service = Service(bootstrap, topic("results", partitions=2), ends, LONG_S)
    leader, standby = service.leading(), service.standby()
    service.end(leader)
    assert not leader.leads
    assert service.until(lambda: standby.leads) < SOON_S


def test_a_killed_leader_is_followed_when_its_session_ends(
    service: Service, tmp_path: Path
) -> None:
    """Not before: it might only be slow."""
    leader = service.apart(tmp_path / "told")
    eventually(lambda: leader.leads)
    standby = service.job("there")
    service.until(lambda: standby.leader == f"process {leader.pid} on {socket.gethostname()}")
    leader.send(signal.SIGKILL)
    took_s = service.until(lambda: standby.leads)
    assert SESSION_S - 1.5 < took_s < SESSION_S + SOON_S
    assert standby.leader == HERE


def test_a_stopped_leaders_lease_ends_by_its_own_clock(service: Service, tmp_path: Path) -> None:
    """Its lease has ended by the clock; by its client it would learn of it only later."""
    leader = service.apart(tmp_path / "told")
    eventually(lambda: leader.leads)
    standby = service.job("there")
    service.until(lambda: standby.leader)
    leader.send(signal.SIGSTOP)
    service.until(lambda: standby.leads)
    followed_at = now()
    leader.send(signal.SIGCONT)
    service.until(lambda: len([turn for turn in leader.turns() if turn.at > followed_at]) > 20)
    after = [turn for turn in leader.turns() if turn.at > followed_at]
    assert not any(turn.before or turn.leads for turn in after)
    assert standby.leads


def test_a_leader_that_stood_still_for_less_leads_on(service: Service, tmp_path: Path) -> None:
    """While its process slept, the group has kept its place."""
    leader = service.apart(tmp_path / "told")
    eventually(lambda: leader.leads)
    standby = service.job("there")
    service.until(lambda: standby.leader)
    leader.send(signal.SIGSTOP)
    service.goes_on(SESSION_S / 2, lambda: not standby.leads)
    leader.send(signal.SIGCONT)
    service.goes_on(SESSION_S, lambda: not standby.leads)
    assert all(turn.leads for turn in leader.turns()[-10:])


def test_a_leader_whose_thread_was_busy_leads_at_its_next_turn(service: Service) -> None:
    """A JVM takes a minute to start: its client keeps the place, and one turn proves it."""
    leader, standby = service.leading(), service.standby()
    service.jobs.remove(leader)
    service.goes_on(SESSION_S + 1, lambda: not standby.leads)
    assert not leader.leads
    leader.turn()
    assert leader.leads
    service.jobs.append(leader)
    service.goes_on(1.0, lambda: leader.leads)


def test_joining_and_leaving_members_do_not_move_the_leader(service: Service) -> None:
    """Each may get partition 0, by the order of its name."""
    leader, _standby = service.leading("m"), service.standby("n")
    for number in range(10):
        third = service.job(f"{'az'[number % 2]}{number}")
        service.until(lambda: service.members() == 3 and leader.leads)
        assert leader.leads
        service.end(third)
        service.until(lambda: service.members() == 2)
        assert leader.leads
    assert leader.problem == ""


def test_a_member_hanging_in_a_rebalance_does_not_end_the_lead(service: Service) -> None:
    """A member that does not answer the revoke holds the group up; commits wait behind it."""
    leader = service.leading()
    hung = service.stranger()
    hung.subscribe([service.topic], on_revoke=lambda *_: None)  # the client waits for this call
    service.until(lambda: hung.poll(0) is None and service.members() == 2)
    service.job("third")
    service.until(lambda: service.members() == 0)
    service.goes_on(SESSION_S + 3, lambda: leader.leads and service.members() == 0)


def test_a_commit_by_a_non_member_is_refused(service: Service) -> None:
    """Kafka takes a commit only of the group's present members."""
    leader = service.leading()
    before = service.held()
    assert "pid" in before
    forged = TopicPartition(service.topic, 0, 0, metadata='{"member":"x","host":"y","pid":1}')
    with pytest.raises(KafkaException) as refused:
        service.stranger().commit(offsets=[forged], asynchronous=False)
    assert refused.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID
    assert json.loads(service.held())["member"] == json.loads(before)["member"]
    service.goes_on(1.5, lambda: leader.leads)


def test_a_commit_of_an_earlier_session_or_generation_is_refused(service: Service) -> None:
    """What the fence rests on: whoever was expelled, or has not heard of a rebalance, is late."""
    first, standby = service.leading(), service.standby()
    stale = json.loads(service.held())["member"]
    service.end(first)
    service.until(lambda: standby.leads and service.held())
    before = service.held()
    present = json.loads(before)["member"]
    assert stale != present

    def committed(member: str, generation: int) -> int:
        where = (service.bootstrap, service.group, generation, member, service.topic)
        return raw_commit.commit(*where, before)

    generations = range(1, 10)
    assert {committed(stale, each) for each in generations} == {KafkaError.UNKNOWN_MEMBER_ID}
    answers = [committed(present, each) for each in generations]
    assert answers.count(KafkaError.NO_ERROR) == 1
    assert answers.count(KafkaError.ILLEGAL_GENERATION) == len(generations) - 1
    assert answers[0] != KafkaError.NO_ERROR


def test_a_foreign_commit_over_the_name_does_not_move_the_lead(service: Service) -> None:
    """A console consumer of this group's name, say; the leader writes its own again."""
    leader, standby = service.leading(), service.standby()
    stranger = service.stranger()
    stranger.subscribe([service.topic])
    service.until(lambda: stranger.poll(0) is None and service.members() == 3)
    for metadata in ("", "x"):
        over = TopicPartition(service.topic, 0, 5, metadata=metadata)
        stranger.commit(offsets=[over], asynchronous=False)
        service.until(lambda: "pid" in service.held())
        assert leader.leads
    assert not standby.leads


def test_a_name_without_a_member_is_no_obstacle(service: Service) -> None:
    """Anybody may commit for a group without members."""
    forged = TopicPartition(service.topic, 0, 0, metadata='{"member":"x","host":"y","pid":1}')
    service.stranger().commit(offsets=[forged], asynchronous=False)
    assert service.leading().leader == HERE


def test_a_missing_topic_prevents_a_leader_and_is_named(service: Service, bootstrap: str) -> None:
    """It is deleted and made again, too."""
    missing = f"{service.topic}-later"
    service.topic = missing
    job = service.job()
    said = f"topic {missing} does not exist: kworker topics create"
    service.until(lambda: job.problem == said)
    create_topic(bootstrap, missing, 1)
    service.until(lambda: job.leads and not job.problem)
    delete_topic(bootstrap, missing)
    service.until(lambda: not job.leads and job.problem == said)
    create_topic(bootstrap, missing, 1)
    service.until(lambda: job.leads and not job.problem)


def test_a_topic_made_again_at_once_has_one_leader(service: Service, bootstrap: str) -> None:
    """The name goes with the topic, without anybody's doing."""
    leader, standby = service.leading(), service.standby()
    turning = threading.Thread(target=make_again, args=(bootstrap, service.topic, 2))
    turning.start()
    service.until(lambda: not turning.is_alive())
    service.until(lambda: service.held() and (leader.leads or standby.leads))
    service.goes_on(2.0, lambda: leader.leads is not standby.leads)


def test_a_commit_keeps_the_session_that_made_it(service: Service, tmp_path: Path) -> None:
    """A lease counts from a claim, so the coordinator's session must count from there, too."""
    leader = service.apart(tmp_path / "told")
    eventually(lambda: leader.leads)
    leader.send(signal.SIGSTOP)  # no heartbeat from now on
    began = time.monotonic()
    member, metadata = json.loads(service.held())["member"], service.held()
    where = (service.bootstrap, service.group)
    generations = range(1, 10)
    [generation] = [
        each
        for each in generations
        if raw_commit.commit(*where, each, member, service.topic, metadata) == KafkaError.NO_ERROR
    ]

    def kept() -> bool:
        answer = raw_commit.commit(*where, generation, member, service.topic, metadata)
        assert answer == KafkaError.NO_ERROR
        return time.monotonic() > began + 2 * SESSION_S

    eventually(kept, every_s=0.5)


def test_a_forbidden_group_is_named_with_the_missing_acl(strict: str, ends: ExitStack) -> None:
    """Otherwise the job would stand by for ever, and nobody know why."""
    service = Service(strict, create_topic(strict, f"r-{uuid.uuid4().hex[:8]}", 1), ends)
    deny(strict, "GROUP", service.group, "READ")
    job = service.job()
    service.until(lambda: job.problem)
    assert job.problem == (
        f"the group {service.group} is forbidden: this user needs the right to read it"
        f" (ACL: Read on group {service.group})"
    )
    assert not job.leads


def test_a_broker_outage_ends_the_lead_only_with_the_session(
    own_sandbox: Callable[..., Sandbox], ends: ExitStack
) -> None:
    """Within it the leader is sure that nobody followed; after it, it is not."""
    sandbox = own_sandbox(redis=False)
    topic = create_topic(sandbox.bootstrap, "results", 2)
    service = Service(sandbox.bootstrap, topic, ends)
    leader, standby = service.leading(), service.standby()
    broker = sandbox.status().servers[0].pid
    assert broker
    os.kill(broker, signal.SIGSTOP)
    try:
        service.goes_on(SESSION_S - 2.5, lambda: leader.leads)
    finally:
        os.kill(broker, signal.SIGCONT)
    service.goes_on(SESSION_S, lambda: leader.leads)
    sandbox.stop_broker(1)
    service.until(lambda: not leader.leads, timeout_s=SESSION_S)
    service.until(lambda: leader.problem == standby.problem == "Kafka does not answer")
    sandbox.start_broker(1)
    took_s = service.until(lambda: leader.leads or standby.leads, timeout_s=60)
    assert took_s < 30
    service.until(lambda: not leader.problem and not standby.problem)
    sandbox.stop_broker(1)
    began = time.monotonic()
    service.end(leader)
    assert time.monotonic() - began < CLOSE_TIMEOUT_S + 1
