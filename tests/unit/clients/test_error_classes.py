"""What each class of a broker's errors means for a transaction, by what the library makes of it."""

import itertools
import logging
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError

from kworker.clients.errors import Abortable, Broken, KafkaRequestError
from kworker.clients.transactions import KafkaTransactor
from kworker.config.client_properties import transactional
from kworker.core.offset_map import Committed
from kworker.core.outcome import Output
from tests.support.mock_cluster import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    COMMIT_OFFSETS,
    END,
    INIT_PRODUCER,
    PRODUCE,
    MockCluster,
)

TOPIC = "results"
RETRIABLE = KafkaError.COORDINATOR_LOAD_IN_PROGRESS
UNKNOWN = KafkaError.UNKNOWN
FENCED = KafkaError.PRODUCER_FENCED
FATAL = KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
ABORTABLE = KafkaError.GROUP_AUTHORIZATION_FAILED
WRITING = {PRODUCE, ADD_PARTITIONS}
POSITIONS = {ADD_OFFSETS, COMMIT_OFFSETS}
IDS = (f"id-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def brokers() -> Iterator[MockCluster]:
    quiet = logging.getLogger("librdkafka")
    level = quiet.level
    quiet.setLevel(logging.CRITICAL)
    mock = MockCluster()
    yield mock
    mock.close()
    quiet.setLevel(level)


def transactor(brokers: MockCluster, name: str) -> KafkaTransactor:
    properties = {"bootstrap.servers": brokers.bootstrap, "enable.idempotence": True}
    return KafkaTransactor(transactional(properties), name, 5.0)


def one_transaction(brokers: MockCluster, used: KafkaTransactor) -> None:
    """A record and a position, as a worker does it; raises what the transactor says."""
    used.begin()
    used.queue(Output(TOPIC, None, b"value", []), lambda *_: None)
    deadline = time.monotonic() + 5
    while used.unfinished:
        used.poll(0.02)
        if trouble := used.problem():
            raise Broken(trouble)
        assert time.monotonic() < deadline
    quiet = {"log_level": 0}
    member = Consumer({"bootstrap.servers": brokers.bootstrap, "group.id": "group", **quiet})
    used.send_positions({(TOPIC, 0): Committed(1)}, member.consumer_group_metadata())
    member.close()
    used.commit()


def opened(brokers: MockCluster) -> KafkaTransactor:
    made = transactor(brokers, next(IDS))
    made.open()
    return made


def failing(
    brokers: MockCluster, request: int, code: int
) -> tuple[KafkaTransactor, pytest.ExceptionInfo[Exception]]:
    """A transactor one of whose requests is answered with an error, and what it said."""
    used = opened(brokers)
    brokers.fail(request, code)
    with pytest.raises((KafkaRequestError, Broken)) as raised:
        one_transaction(brokers, used)
    return used, raised


@pytest.mark.parametrize("request_", [INIT_PRODUCER, *WRITING, *POSITIONS, END])
def test_retriable_errors_are_retried_by_the_library(brokers: MockCluster, request_: int) -> None:
    """Nobody hears of it, but for the end of a transaction: one that was sent twice is in doubt."""
    brokers.fail(request_, RETRIABLE)
    used = opened(brokers)
    if request_ == END:
        with pytest.raises(KafkaRequestError, match="sent again"):
            one_transaction(brokers, used)
    else:
        one_transaction(brokers, used)


@pytest.mark.parametrize("request_", sorted(POSITIONS))
@pytest.mark.parametrize("code", [ABORTABLE, KafkaError.ILLEGAL_GENERATION, UNKNOWN])
def test_an_abortable_error_leaves_the_producer_usable(
    brokers: MockCluster, request_: int, code: int
) -> None:
    """A rebalance for one; and what nobody knows, before the end, did not happen."""
    used, raised = failing(brokers, request_, code)
    assert raised.type is Abortable
    used.abort()
    one_transaction(brokers, used)


@pytest.mark.parametrize("request_", sorted(WRITING))
@pytest.mark.parametrize("code", [KafkaError.TOPIC_AUTHORIZATION_FAILED, UNKNOWN])
def test_a_topic_refusal_ends_with_an_abort(brokers: MockCluster, request_: int, code: int) -> None:
    used, raised = failing(brokers, request_, code)
    assert raised.type is Broken
    used.abort()


@pytest.mark.parametrize("request_", [*sorted(POSITIONS), END])
@pytest.mark.parametrize("code", [FATAL, KafkaError.INVALID_TXN_STATE])
def test_a_fatal_error_is_in_doubt_and_a_new_producer_goes_on(
    brokers: MockCluster, request_: int, code: int
) -> None:
    """It is nobody's fence, so the id is still ours."""
    used, raised = failing(brokers, request_, code)
    assert raised.type is KafkaRequestError
    assert raised.value.retriable  # type: ignore[attr-defined]
    used.close()
    one_transaction(brokers, opened(brokers))


@pytest.mark.parametrize("request_", [*sorted(POSITIONS), END])
@pytest.mark.parametrize("code", [FENCED, KafkaError.INVALID_PRODUCER_EPOCH])
def test_a_fence_is_told_from_every_other_error(
    brokers: MockCluster, request_: int, code: int
) -> None:
    """Who would open another producer then would fence its twin, and so for ever."""
    _, raised = failing(brokers, request_, code)
    assert raised.type is KafkaRequestError
    assert not raised.value.retriable  # type: ignore[attr-defined]


def test_a_commit_with_an_unknown_end_is_in_doubt(brokers: MockCluster) -> None:
    """It may have taken effect, so it cannot be aborted."""
    _, raised = failing(brokers, END, UNKNOWN)
    assert raised.type is KafkaRequestError


def test_a_transactor_that_failed_to_open_opens_later(
    brokers: MockCluster,
) -> None:
    """A right that is granted later, for one: the library's client remembers what was fatal."""
    brokers.fail(INIT_PRODUCER, FATAL, FATAL)
    used = transactor(brokers, next(IDS))
    for _ in range(2):
        with pytest.raises(KafkaRequestError) as refused:
            used.open()
        assert refused.value.retriable
    used.open()
    one_transaction(brokers, used)
