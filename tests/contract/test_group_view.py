"""What a bystander learns of a group on the real broker: every partition's lag, every owner."""

from collections.abc import Callable

import pytest

from kworker.clients.admin_connection import AdminRequestError
from kworker.clients.group_view import GroupWatcher
from kworker.core.offset_map import Committed
from tests.support.kafka_and_twin import Real
from tests.support.member import Member, new_group, until
from tests.support.waiting import eventually


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_lag_and_owners_are_told_of_every_partition(
    bootstrap: str, topic: Callable[..., str], protocol: str
) -> None:
    """Under either protocol, and whatever an open transaction hides from its members."""
    kafka, group = Real(bootstrap, topic), new_group()
    source = kafka.create(3)
    watcher = GroupWatcher({"bootstrap.servers": bootstrap}, group)
    for partition in range(3):
        for _ in range(4):
            kafka.write(source, partition, value=b"x")

    def nobody_owns_any() -> bool:
        try:
            return not watcher.read([source, "missing"]).owners
        except AdminRequestError:  # the broker makes its topic of positions for the first group
            return False

    eventually(nobody_owns_any)
    member = Member(kafka, [source], group=group, group_protocol=protocol, client_id="me-0")
    until(lambda: len(member.owned) == 3, member)
    member.consumer.commit_now({(source, 0): Committed(3)})
    transactor = kafka.transactor(f"hides-{source}")
    transactor.open()
    transactor.begin()
    transactor.send_positions({(source, 0): Committed(4)}, member.consumer.group_metadata())
    view = watcher.read([source, "missing"])
    assert view.behind == {(source, 0): 1, (source, 1): 4, (source, 2): 4}
    assert view.owners == {(source, n): "me-0" for n in range(3)}
    transactor.abort()
    kafka.end()
