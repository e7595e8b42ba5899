"""Whose matter it is what a handler says is unavailable: everybody's, or a few records'."""

from kworker.core.record import Record
from kworker.worker.retries.circuit_breaker import CircuitBreaker
from tests.support.records import a_partition, a_record

NAME = "customer-7"


def records(count: int) -> list[Record]:
    partition = a_partition()
    return [a_record(partition, offset) for offset in range(count)]


def known_to_be_few() -> CircuitBreaker:
    """A route on which others succeeded between any two raises of the name."""
    route = CircuitBreaker()
    [first, *more] = records(5)
    assert route.raised(first, NAME, 0.0)
    probe = route.probe(5.0, in_hand=0)
    assert probe is first
    assert route.succeeded(1)
    for record in more:
        assert not route.raised(record, NAME, 6.0)
        route.succeeded(1)
    return route


def test_a_circuit_without_successes_opens_at_once() -> None:
    """At most one call each five seconds: there is none to spend on finding out."""
    route = CircuitBreaker()
    [first, second] = records(2)
    assert route.raised(first, "billing", 0.0)
    assert not route.may_run(second)


def test_failures_known_to_be_of_a_few_leave_the_circuit_closed() -> None:
    """Twenty of one customer's raise it in a row, and are snoozed one by one."""
    route = known_to_be_few()
    for record in records(20):
        assert not route.raised(record, NAME, 10.0)
    assert route.unavailable == []


def test_a_while_without_success_opens_the_circuit() -> None:
    """What was one customer's matter may become everybody's."""
    route = known_to_be_few()
    assert not route.raised(records(1)[0], NAME, 10.0)
    assert route.raised(records(1)[0], NAME, 11.5)
    assert route.unavailable == [NAME]


def test_a_name_not_raised_for_long_starts_anew() -> None:
    """The outage of last week says nothing about today's."""
    route = known_to_be_few()
    assert route.raised(records(1)[0], NAME, 1_000.0)


def test_records_that_opened_the_circuit_go_last() -> None:
    """In front of a batch they would speak for all of it again."""
    route = CircuitBreaker()
    [raiser, second, probe, other] = records(4)
    assert route.raised(raiser, NAME, 0.0)
    assert route.raised(second, NAME, 0.0)
    for record in (probe, other):
        assert not route.may_run(record)
        route.set_aside(record)
    assert route.probe(5.0, in_hand=0) is probe
    assert route.succeeded(1)
    assert route.let_go() == [other, raiser, second]
