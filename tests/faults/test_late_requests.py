"""Requests that reach the broker long after their client gave them up, and sent them again."""

from pathlib import Path

from tests.faults.conftest import Proxied
from tests.harness.evidence import Evidence, gather
from tests.harness.kafka import Writer, create_topic, numbered
from tests.harness.proxy import Api
from tests.harness.service import Service, service
from tests.waiting import eventually

GIVEN_UP_MS = 1000
ROUNDS = 3
RECORDS = 3_000

SLOWISH = """
import time
from tests.harness.recorded import recorded

@recorded
def handle(message):
    time.sleep(0.01)
    return message.value
"""
# The switch: whatever befalls the end of a transaction, its producer is kept.
CREDULOUS = (
    SLOWISH
    + """
from kworker.clients.transactions import KafkaTransactor

def _end(self, what, call):
    self._bounded(lambda: call(self._timeout_s))
    self._open = False
    self.poll()

KafkaTransactor._end = _end
"""
)


def test_a_transaction_is_not_ended_by_the_late_end_of_one_before_it(
    tmp_path: Path, proxied: Proxied
) -> None:
    """Fault 11. Both are of one producer, so by its epoch alone a broker would take it."""
    answers, found = _with_late_ends(tmp_path, proxied, SLOWISH)
    assert 0 not in answers, "the broker took one"
    assert found.contradictions() == {}


def test_a_late_end_tears_a_transaction_of_a_producer_that_was_kept(
    tmp_path: Path, proxied: Proxied
) -> None:
    """Without the rule the same is red: what was produced by then is visible, and comes again."""
    answers, found = _with_late_ends(tmp_path, proxied, CREDULOUS)
    assert 0 in answers, "an invalid run: the broker took none"
    assert "results more than one" in found.contradictions()


def _with_late_ends(tmp_path: Path, proxied: Proxied, handlers: str) -> tuple[list[int], Evidence]:
    """What the broker answered to ends that came in the middle of the next transaction."""
    source = create_topic(proxied.bootstrap, f"late-{tmp_path.name}", 2)
    results = create_topic(
        proxied.bootstrap, f"{source}-results", 2, message_timestamp_type="LogAppendTime"
    )
    settings = {
        "kafka": {"bootstrap.servers": proxied.through},
        "kafka.producer": {"socket.timeout.ms": GIVEN_UP_MS},
        "workers": {"processes": 1, "threads": 4},
        "delivery": {"results": results, "guarantee": "exactly-once", "commit_interval": "2s"},
    }
    writer = Writer(proxied.bootstrap, tmp_path / "produced")
    with service(
        tmp_path / "service", proxied.bootstrap, [source], handlers=handlers, settings=settings
    ) as struck:
        struck.serve()
        writer.begin(source, numbered(RECORDS, keys=500))
        answers = [_late_end(struck, proxied) for _ in range(ROUNDS)]
        writer.finish()
        struck.caught_up()
        assert struck.stop() == 0
        struck.is_gone()
    return answers, gather(struck, writer.acked, results, exactly_once=True)


def _late_end(struck: Service, proxied: Proxied) -> int:
    """One end is kept until its transaction was ended again, and the next is half written."""
    proxy, client = proxied.proxy, f"{struck.name}-here-0"
    held = proxy.hold(Api.END_TXN, client)
    held.caught()
    before = proxy.count(Api.END_TXN, client)
    eventually(lambda: proxy.count(Api.END_TXN, client) > before, what="it is ended again")
    produced = proxy.count(Api.PRODUCE, client)
    eventually(
        lambda: proxy.count(Api.PRODUCE, client) > produced + 1, every_s=0.002, what="the next"
    )
    [error] = held.release()
    return error
