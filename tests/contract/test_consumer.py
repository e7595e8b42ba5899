"""The consumer's contract: `KafkaConsumer` on a real broker and `MemoryConsumer` alike."""

import statistics
import time
from collections.abc import Callable

import pytest

from kworker.clients.errors import KafkaRequestError
from kworker.clients.events import ConsumerEvent
from kworker.core.membership import Absence
from kworker.core.message import PartitionId
from kworker.core.offset_map import METADATA_MAX, Committed
from tests.support.kafka_and_twin import Cluster, Real, sized
from tests.support.member import Member, for_a_while, new_group, until
from tests.support.waiting import eventually


def fill(kafka: Cluster, topic: str, *values: bytes, partition: int = 0) -> None:
    for value in values:
        kafka.write(topic, partition, value=value)


def test_a_record_arrives_as_it_was_written(kafka: Cluster) -> None:
    """Dead letters promise key, value and headers byte for byte, in order, with repeats."""
    topic = kafka.create()
    headers = (("a", b"1"), ("b", None), ("a", b"\xff"), ("é", b""))
    stamp = int(time.time() * 1000) - 5000
    kafka.write(topic, value=b"\x00\xff", key=b"k", headers=headers, timestamp=stamp)
    member = Member(kafka, [topic])
    until(lambda: member.records, member)
    [raw] = member.records
    assert (raw.topic(), raw.partition(), raw.offset()) == (topic, 0, 0)
    assert (raw.key(), raw.value(), tuple(raw.headers() or ())) == (b"k", b"\x00\xff", headers)
    assert raw.timestamp()[1] == stamp
    assert (raw.error(), len(raw)) == (None, 2)


def test_null_and_empty_values_stay_apart(kafka: Cluster) -> None:
    """A null value is a tombstone, a null key has no order."""
    topic = kafka.create()
    kafka.write(topic)
    kafka.write(topic, value=b"", key=b"")
    member = Member(kafka, [topic])
    until(lambda: len(member.records) == 2, member)
    assert [(r.key(), r.value(), r.headers()) for r in member.records] == [
        (None, None, None),
        (b"", b"", None),
    ]


def test_poll_without_a_timeout_returns_at_once(kafka: Cluster) -> None:
    """The poll thread asks so while handlers are at work."""
    member = Member(kafka, [kafka.create()])
    until(lambda: member.heard("assigned"), member)
    waits_s = []
    for _ in range(50):
        began = time.monotonic()
        member.consumer.poll(100, 0)
        waits_s.append(time.monotonic() - began)
    assert statistics.median(waits_s) < 0.02  # the machine may be busy for some of them


@pytest.mark.parametrize("timeout_s", [0.0, 0.5])
def test_poll_returns_no_more_records_than_asked_for(kafka: Cluster, timeout_s: float) -> None:
    """Flow has room for so many and no more."""
    topic = kafka.create()
    fill(kafka, topic, *[b"%d" % i for i in range(50)])
    member = Member(kafka, [topic], enable_partition_eof=False)
    until(lambda: member.owned, member)
    sizes = []
    taken = len(member.records)

    def take_seven() -> bool:
        nonlocal taken
        sizes.append(len(member.consumer.poll(7, timeout_s)))
        taken += sizes[-1]
        return taken == 50

    until(take_seven)
    assert max(sizes) == 7


def test_an_assigned_partition_begins_paused(kafka: Cluster) -> None:
    """What is returned by the call that brought the assignment belongs to an earlier epoch."""
    topic = kafka.create()
    fill(kafka, topic, b"alpha")
    member = Member(kafka, [topic], reads=False)
    until(lambda: member.owned, member)
    for_a_while(member)
    assert (member.records, member.ends) == ([], [])
    member.consumer.resume(member.owned)
    until(lambda: member.records, member)
    assert member.values() == [b"alpha"]


def test_a_resumed_assignment_is_read_at_once(kafka: Cluster) -> None:
    """And not after the second that a client sleeps when nothing may be fetched."""
    waits = []
    for _ in range(3):  # the machine may be busy for one of them
        topic = kafka.create()
        fill(kafka, topic, b"alpha", b"bravo")
        member = Member(kafka, [topic])
        until(lambda member=member: member.owned, member)
        began = time.monotonic()
        until(lambda member=member: len(member.records) == 2, member)
        waits.append(time.monotonic() - began)
        assert member.values() == [b"alpha", b"bravo"]
    assert min(waits) < 0.7


def test_a_paused_partition_gives_nothing_and_others_go_on(kafka: Cluster) -> None:
    topic = kafka.create(2)
    member = Member(kafka, [topic])
    until(lambda: len(member.ends) == 2, member)
    member.consumer.pause([(topic, 0)])
    fill(kafka, topic, b"held", partition=0)
    fill(kafka, topic, b"free", partition=1)
    until(lambda: member.records, member)
    for_a_while(member)
    assert member.values() == [b"free"]
    member.consumer.resume([(topic, 0)])
    until(lambda: len(member.records) == 2, member)
    assert member.values() == [b"free", b"held"]


def test_pausing_and_resuming_neither_loses_nor_repeats(kafka: Cluster) -> None:
    """Pausing throws the client's prefetch away; what was not handed over must come again."""
    topic = kafka.create()
    fill(kafka, topic, *[b"%d" % i for i in range(300)])
    member = Member(kafka, [topic])
    until(lambda: member.owned, member)

    def stutter() -> bool:
        member.consumer.pause([(topic, 0)])
        member.consumer.resume([(topic, 0)])
        return len(member.records) >= 300

    until(stutter, member)
    assert [r.offset() for r in member.records] == list(range(300))


def test_pausing_an_unowned_partition_does_nothing(kafka: Cluster) -> None:
    """A pause may cross with a revoke."""
    member = Member(kafka, [kafka.create()])
    until(lambda: member.owned, member)
    member.consumer.pause([("elsewhere", 3)])
    member.consumer.resume([("elsewhere", 3)])
    for_a_while(member, turns=2)


def test_a_pause_ends_with_its_assignment(kafka: Cluster) -> None:
    """Who paused it is gone, and so must be the pause, which the library itself keeps."""
    topic, group = kafka.create(), new_group()
    fill(kafka, topic, b"alpha", b"bravo")
    member = Member(kafka, [topic], group=group)
    until(lambda: len(member.records) == 2, member)
    member.consumer.pause([(topic, 0)])
    other = Member(kafka, [topic], group=group)
    until(lambda: member.heard("revoked"), member, other)
    other.consumer.close()
    until(lambda: len(member.records) == 4, member)


def test_seeking_back_repeats_from_there_on_resume(kafka: Cluster) -> None:
    """Before that nothing of it comes, however much was prefetched; others are not disturbed."""
    topic = kafka.create(2)
    for partition in (0, 1):
        for i in range(200):
            kafka.write(topic, partition, value=b"%d" % i)
    member = Member(kafka, [topic], reads=False)
    until(lambda: member.owned, member)
    member.consumer.resume(member.owned)
    until(lambda: [r for r in member.records if r.partition() == 0], member)
    for again in (40, 40, 199, 0):
        member.consumer.pause([(topic, 0)])
        member.consumer.seek((topic, 0), again)
        member.records.clear()
        for_a_while(member)
        assert [r for r in member.records if r.partition() == 0] == []
        member.consumer.resume([(topic, 0)])
        took = eventually(lambda: few(member))
        assert took == list(range(again, again + len(took)))
    eventually(lambda: took.extend(few(member)) or len(took) >= 200)
    assert took == list(range(200))


def few(member: Member) -> list[int]:
    """The next offsets of its first partition."""
    batch = member.consumer.poll(7, 0.05)
    return [raw.offset() for raw in batch if raw.error() is None and raw.partition() == 0]


def test_a_recreated_topic_has_a_new_identity(kafka: Cluster) -> None:
    """Where offsets are about, when they come back with a map."""
    one, two = kafka.create(), kafka.create()
    before = kafka.identities([one, two, "nowhere"], 10.0)
    assert before.keys() == {one, two}
    assert before[one].cluster_id == before[two].cluster_id != ""
    assert before[one].topic_id != before[two].topic_id
    assert kafka.identities([two, one], 10.0) == before
    kafka.make_again(one)
    after = eventually(lambda: kafka.identities([one], 10.0))
    assert after[one].cluster_id == before[one].cluster_id
    assert after[one].topic_id != before[one].topic_id


def test_without_a_commit_a_group_has_no_position(kafka: Cluster) -> None:
    topic = kafka.create()
    member = Member(kafka, [topic])
    until(lambda: member.owned, member)
    assert member.consumer.positions([(topic, 0)], 10) == {(topic, 0): None}


def test_a_commit_is_answered_inside_poll_and_can_be_read_back(kafka: Cluster) -> None:
    topic = kafka.create(2)
    member = Member(kafka, [topic])
    until(lambda: member.owned, member)
    member.consumer.commit({(topic, 0): Committed(3), (topic, 1): Committed(0)})
    assert member.heard("committed") == []
    until(lambda: member.heard("committed"), member)
    assert member.heard("committed") == [None]
    assert member.consumer.positions(member.owned, 10) == {
        (topic, 0): Committed(3),
        (topic, 1): Committed(0),
    }


def test_a_commit_that_waits_is_not_answered_a_second_time(kafka: Cluster) -> None:
    """The answer to another commit would be taken for it."""
    topic = kafka.create()
    member = Member(kafka, [topic])
    until(lambda: member.owned, member)
    member.consumer.commit_now({(topic, 0): Committed(3)})
    assert member.consumer.positions(member.owned, 10) == {(topic, 0): Committed(3)}
    for_a_while(member)
    assert member.heard("committed") == []


def test_commits_take_effect_in_the_order_they_were_sent(kafka: Cluster) -> None:
    """One under way when a revoke comes must not overtake the one that waits."""
    topic = kafka.create()
    member = Member(kafka, [topic])
    until(lambda: member.owned, member)
    member.consumer.commit({(topic, 0): Committed(3)})
    member.consumer.commit_now({(topic, 0): Committed(5)})
    until(lambda: member.heard("committed"), member)
    assert member.consumer.positions(member.owned, 10) == {(topic, 0): Committed(5)}


def test_commit_metadata_is_read_back_with_its_position(kafka: Cluster) -> None:
    """What is done beyond the position travels so; and without any, none of an earlier one."""
    topic = kafka.create(2)
    member = Member(kafka, [topic])
    until(lambda: member.owned, member)
    held = {(topic, 0): Committed(3, "what is done"), (topic, 1): Committed(0)}
    member.consumer.commit_now(held)
    assert member.consumer.positions(member.owned, 10) == held
    member.consumer.commit({(topic, 0): Committed(4), (topic, 1): Committed(0, "more")})
    until(lambda: member.heard("committed"), member)
    held = {(topic, 0): Committed(4), (topic, 1): Committed(0, "more")}
    assert member.consumer.positions(member.owned, 10) == held


def test_metadata_is_taken_up_to_its_limit_and_no_further(kafka: Cluster) -> None:
    """The broker counts the NUL that the client adds. What was there before stays."""
    topic = kafka.create()
    member = Member(kafka, [topic])
    until(lambda: member.owned, member)
    longest = Committed(3, "x" * METADATA_MAX)
    member.consumer.commit_now({(topic, 0): longest})
    longer = {(topic, 0): Committed(4, "x" * (METADATA_MAX + 1))}
    with pytest.raises(KafkaRequestError):
        member.consumer.commit_now(longer)
    member.consumer.commit(longer)
    until(lambda: member.heard("committed"), member)
    assert "OFFSET_METADATA_TOO_LARGE" in member.heard("committed")[0]
    assert member.consumer.positions(member.owned, 10) == {(topic, 0): longest}


def test_a_new_member_begins_at_the_committed_position(kafka: Cluster) -> None:
    topic, group = kafka.create(), new_group()
    fill(kafka, topic, b"alpha", b"bravo", b"charlie")
    first = Member(kafka, [topic], group=group)
    until(lambda: len(first.records) == 3, first)
    first.consumer.commit_now({(topic, 0): Committed(1)})
    first.consumer.close()
    second = Member(kafka, [topic], group=group)
    until(lambda: len(second.records) == 2, second)
    assert second.values() == [b"bravo", b"charlie"]


def test_the_end_of_a_partition_is_told_with_its_position(kafka: Cluster) -> None:
    """A drain waits for it; an empty partition has an end too."""
    topic = kafka.create(2)
    fill(kafka, topic, b"alpha", b"bravo")
    member = Member(kafka, [topic])
    until(lambda: len(member.ends) == 2, member)
    assert sorted(member.ends) == [((topic, 0), 2), ((topic, 1), 0)]
    fill(kafka, topic, b"charlie")
    until(lambda: len(member.ends) == 3, member)
    assert member.ends[-1] == ((topic, 0), 3)
    for_a_while(member)
    assert len(member.ends) == 3


def test_members_share_each_topic_and_a_leaver_returns_its_share(kafka: Cluster) -> None:
    topics, group = [kafka.create(4), kafka.create(2)], new_group()
    one = Member(kafka, topics, group=group)
    until(lambda: len(one.owned) == 6, one)
    two = Member(kafka, topics, group=group)
    until(lambda: len(one.owned) == len(two.owned) == 3, one, two)
    assert sized(one.owned) == sized(two.owned) == {topics[0]: 2, topics[1]: 1}
    assert not set(one.owned) & set(two.owned)
    two.consumer.close()
    until(lambda: len(one.owned) == 6, one)


def test_range_assignment_gives_neighbouring_partitions(kafka: Cluster) -> None:
    topic, group = kafka.create(5), new_group()
    members = [
        Member(kafka, [topic], group=group, group_instance_id=f"{group}-{i}") for i in (0, 1)
    ]
    until(lambda: sorted(len(m.owned) for m in members) == [2, 3], *members)
    assert members[0].owned == [(topic, 0), (topic, 1), (topic, 2)]
    assert members[1].owned == [(topic, 3), (topic, 4)]


def test_everything_is_revoked_before_a_new_assignment(kafka: Cluster) -> None:
    topic, group = kafka.create(2), new_group()
    one = Member(kafka, [topic], group=group)
    until(lambda: len(one.owned) == 2, one)
    two = Member(kafka, [topic], group=group)
    until(lambda: len(one.owned) == len(two.owned) == 1, one, two)
    both = [(topic, 0), (topic, 1)]
    told = [entry for entry in one.told if entry[0] != "committed"]
    assert told == [("assigned", both), ("revoked", both), ("assigned", one.owned)]
    assert two.heard("revoked") == []


def test_a_commit_while_being_revoked_reaches_the_next_owner(kafka: Cluster) -> None:
    """What was in hand ends, is committed, and is not done again."""
    topic, group = kafka.create(2), new_group()
    for partition in (0, 1):
        fill(kafka, topic, b"alpha", b"bravo", partition=partition)
    one = Member(kafka, [topic], group=group)
    one.commit_on_revoke = {(topic, 0): Committed(1), (topic, 1): Committed(1)}
    until(lambda: len(one.records) == 4, one)
    one.records.clear()
    two = Member(kafka, [topic], group=group)
    until(lambda: len(one.records) == len(two.records) == 1, one, two)
    for_a_while(one, two)
    assert one.values() == two.values() == [b"bravo"]


def test_a_third_member_of_two_partitions_is_assigned_nothing(kafka: Cluster) -> None:
    """An empty assignment counts as having joined."""
    topic, group = kafka.create(2), new_group()
    members = [Member(kafka, [topic], group=group) for _ in range(3)]
    until(lambda: sorted(len(m.owned) for m in members) == [0, 1, 1], *members)
    until(lambda: all(m.heard("assigned") for m in members), *members)
    idle = next(m for m in members if not m.owned)
    assert idle.heard("assigned")[-1] == []


def test_a_close_revokes_for_the_other_members(kafka: Cluster) -> None:
    topic, group = kafka.create(), new_group()
    one = Member(kafka, [topic], group=group)
    until(lambda: one.owned, one)
    one.commit_on_revoke = {(topic, 0): Committed(7)}
    one.consumer.close()
    assert one.heard("revoked") == [[(topic, 0)]]
    two = Member(kafka, [topic], group=group)
    until(lambda: two.owned, two)
    assert two.consumer.positions(two.owned, 10) == {(topic, 0): Committed(7)}


def test_a_static_member_that_closes_keeps_its_place(kafka: Cluster) -> None:
    """So a respawned worker goes on where it was, and nobody else is disturbed."""
    topic, group = kafka.create(2), new_group()
    names = [f"{group}-0", f"{group}-1"]
    zero, one = (Member(kafka, [topic], group=group, group_instance_id=n) for n in names)
    until(lambda: len(zero.owned) == len(one.owned) == 1, zero, one)
    owned, told = one.owned, len(zero.told)
    one.consumer.close()
    again = Member(kafka, [topic], group=group, group_instance_id=names[1])
    until(lambda: again.owned, zero, again)
    assert again.owned == owned
    assert len(zero.told) == told


def test_a_static_member_that_unsubscribes_leaves(kafka: Cluster) -> None:
    """`stop` and scaling down give the partitions back at once."""
    topic, group = kafka.create(2), new_group()
    names = [f"{group}-0", f"{group}-1"]
    zero, one = (Member(kafka, [topic], group=group, group_instance_id=n) for n in names)
    until(lambda: len(zero.owned) == len(one.owned) == 1, zero, one)
    one.consumer.unsubscribe()
    until(lambda: len(zero.owned) == 2, zero, one)
    assert one.owned == []


def test_a_static_member_that_has_left_may_close_at_once(kafka: Cluster) -> None:
    """A drain shall not wait for longer than that takes; else the session would have to end."""
    topic, group = kafka.create(2), new_group()
    zero, one = (
        Member(kafka, [topic], group=group, group_instance_id=name, session_timeout_ms=300_000)
        for name in (f"{group}-0", f"{group}-1")
    )
    until(lambda: len(zero.owned) == len(one.owned) == 1, zero, one)
    assert one.consumer.joined
    one.consumer.unsubscribe()
    until(lambda: not one.consumer.joined, one)
    one.consumer.close()
    until(lambda: len(zero.owned) == 2, zero)


def test_a_namesake_of_a_static_member_fences_the_older_one(kafka: Cluster) -> None:
    """A member that lost its identity is told so, and can commit nothing any more."""
    topic, group = kafka.create(), new_group()
    older = Member(kafka, [topic], group=group, group_instance_id=f"{group}-0")
    until(lambda: older.owned, older)
    newer = Member(kafka, [topic], group=group, group_instance_id=f"{group}-0")
    until(lambda: newer.owned, newer)
    with pytest.raises(KafkaRequestError):
        older.consumer.commit_now({(topic, 0): Committed(5)})
    until(lambda: ConsumerEvent.FENCED in [trouble for trouble, _ in older.troubles], older, newer)
    assert newer.consumer.positions([(topic, 0)], 10) == {(topic, 0): None}


def test_a_lost_position_stops_its_partition_and_is_told_once(kafka: Cluster) -> None:
    """Nothing is skipped: somebody has to decide."""
    topic, group = kafka.create(2), new_group()
    for partition in (0, 1):
        fill(kafka, topic, b"alpha", b"bravo", b"charlie", partition=partition)
    first = Member(kafka, [topic], group=group)
    until(lambda: len(first.owned) == 2, first)
    first.consumer.commit_now({(topic, 0): Committed(1), (topic, 1): Committed(1)})
    first.consumer.close()
    kafka.trim(topic, 0, 2)
    second = Member(kafka, [topic], group=group)
    until(lambda: second.troubles and len(second.records) == 2, second)
    for_a_while(second)
    assert second.troubles == [(ConsumerEvent.OUT_OF_RANGE, topic)]
    assert [(r.partition(), r.value()) for r in second.records] == [(1, b"bravo"), (1, b"charlie")]
    assert second.consumer.watermarks((topic, 0), 10) == (2, 3)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_partition_without_its_position_stops_and_is_told(kafka: Cluster, protocol: str) -> None:
    """To begin anywhere would repeat or skip; the others go on."""
    topic, group = kafka.create(2), new_group()
    for partition in (0, 1):
        fill(kafka, topic, b"alpha", b"bravo", partition=partition)
    first = Member(kafka, [topic], group=group, group_protocol=protocol)
    until(lambda: len(first.owned) == 2, first)
    first.consumer.commit_now({(topic, 1): Committed(1)})
    first.consumer.close()
    second = Member(kafka, [topic], group=group, insists=True, group_protocol=protocol)
    until(lambda: second.troubles and second.records, second)
    for_a_while(second)
    assert second.troubles == [(ConsumerEvent.OUT_OF_RANGE, topic)]
    assert [(r.partition(), r.value()) for r in second.records] == [(1, b"bravo")]


def test_without_a_position_reading_begins_at_what_is_left(kafka: Cluster) -> None:
    topic = kafka.create()
    fill(kafka, topic, b"alpha", b"bravo", b"charlie")
    kafka.trim(topic, 0, 2)
    member = Member(kafka, [topic])
    until(lambda: member.records, member)
    assert [r.offset() for r in member.records] == [2]
    assert member.troubles == []


def test_a_missing_topic_is_told_and_others_are_read(kafka: Cluster) -> None:
    """It is waited for, and status says why."""
    topic = kafka.create()
    fill(kafka, topic, b"alpha")
    member = Member(kafka, [topic, "contract-missing"])
    until(lambda: member.troubles and member.records, member)
    assert member.troubles[0] == (ConsumerEvent.UNREADABLE, "contract-missing")
    assert member.owned == [(topic, 0)]


def test_an_unmatched_topic_pattern_is_told_as_missing(kafka: Cluster) -> None:
    """Who may well find none, as the delay process, must know it for what it is."""
    member = Member(kafka, ["^contract-none"])
    until(lambda: member.troubles, member)
    assert member.troubles == [(ConsumerEvent.UNREADABLE, "^contract-none")]
    assert member.owned == []


def test_a_member_without_partitions_knows_it_is_a_member(kafka: Cluster) -> None:
    """A member that is given no partition is one all the same."""
    topic, group = kafka.create(1), new_group()
    one = Member(kafka, [topic], group=group)
    assert one.consumer.absence is not None
    two = Member(kafka, [topic], group=group)
    until(lambda: one.consumer.absence is two.consumer.absence is None, one, two, what="both are")
    assert sorted([one.owned, two.owned]) == [[], [(topic, 0)]]


def test_a_member_absent_from_a_rebalance_is_noticed(kafka: Cluster) -> None:
    """Not for ever, but for as long as a slow member may take."""
    topic, group = kafka.create(1), new_group()
    one = Member(kafka, [topic], group=group)
    until(lambda: one.owned and one.consumer.absence is None, one)
    two = Member(kafka, [topic], group=group)
    until(lambda: two.consumer.absence is Absence.REBALANCE, two, what="it waits for the first")


def test_positions_that_an_open_transaction_hides_are_told_apart(kafka: Cluster) -> None:
    """All others are told; and it is known that the coordinator answers."""
    topic = kafka.create(3)
    member = Member(kafka, [topic])
    until(lambda: len(member.owned) == 3, member)
    member.consumer.commit_now({(topic, 0): Committed(7)})
    transactor = kafka.transactor(f"hides-{topic}")
    transactor.open()
    transactor.begin()
    transactor.send_positions({(topic, 1): Committed(1)}, member.consumer.group_metadata())
    with pytest.raises(KafkaRequestError):
        member.consumer.positions(member.owned, 1.0)
    assert member.consumer.hidden(member.owned) == [(topic, 1)]
    assert member.consumer.positions([(topic, 0)], 10.0) == {(topic, 0): Committed(7)}
    transactor.abort()
    assert member.consumer.hidden(member.owned) == []


def test_a_kip_848_member_without_partitions_is_a_member(
    bootstrap: str, topic: Callable[..., str]
) -> None:
    """Whose client is never told of an assignment."""
    kafka = Real(bootstrap, topic)
    source, group = kafka.create(1), new_group()
    new = {"group_protocol": "consumer"}
    members = [Member(kafka, [source], group=group, **new) for _ in range(2)]
    until(lambda: not any(each.consumer.absence for each in members), *members)
    until(lambda: any(each.owned for each in members), *members)
    kafka.end()


class Finishing(Member):
    """Lets what it has in hand come to its end before it gives partitions up."""

    def revoked(self, partitions: list[PartitionId]) -> None:
        time.sleep(0.1)
        super().revoked(partitions)


def test_partitions_that_a_kip_848_rebalance_leaves_go_on_at_once(
    bootstrap: str, topic: Callable[..., str]
) -> None:
    """And not after the second for which the client's thread may sleep: it pauses all of them."""
    kafka = Real(bootstrap, topic)
    new = {"group_protocol": "consumer", "fetch_wait_max_ms": 10}
    waits = []
    for _ in range(3):  # the machine may be busy for one of them
        source, group = kafka.create(2), new_group()
        one = Finishing(kafka, [source], group=group, **new)
        until(lambda one=one: len(one.ends) == 2, one)
        two = Member(kafka, [source], group=group, **new)
        until(lambda one=one: len(one.owned) == 1, one, two)
        began = time.monotonic()
        fill(kafka, source, b"alpha", partition=one.owned[0][1])
        until(lambda one=one: one.records, one, two)
        waits.append(time.monotonic() - began)
        two.consumer.close()
        until(lambda one=one: len(one.owned) == 2, one)
    assert min(waits) < 0.6
    kafka.end()
