"""Others with our transactional ids: what they fence is written again, and is there once."""

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from kworker.config import toml_file
from kworker.config.client_properties import transactional_id
from tests.support.kafka import Writer, numbered, read_all
from tests.support.lines import whole_lines
from tests.support.service import Service, service
from tests.support.waiting import eventually

Topic = Callable[..., str]

FEW, FENCES = 300, 4
# A service that began long ago; a test is not.
OLD = """
from functools import partial
from kworker.delay import process
from kworker.worker import assembly
for module in (assembly, process):
    module.FencePolicy = partial(module.FencePolicy, grown_s=1e-3)
"""
# One in ten is delayed once, so the delay process has its transactions, too.
SOME_AGAIN = """
import time
from kworker import Retry

def handle(message):
    time.sleep(0.003)
    if message.offset % 10 == 0 and message.attempt == 1:
        raise Retry("once")
    return message.value
"""
TAKEN = "took the transactional id"
# A fence soon after a request that was sent twice may be by that request, and accuses nobody.
IN_DOUBT = ("it is not known whether a transaction", "a transaction failed; reading")


def fenced(bootstrap: str, name: str) -> None:
    """By a stranger's init_transactions."""
    Producer({"bootstrap.servers": bootstrap, "transactional.id": name}).init_transactions(30)


def test_a_stranger_with_our_transactional_ids_costs_only_time(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str
) -> None:
    """Each id of the service is taken again and again while it writes."""
    source = topic("fenced", partitions=4)
    settings: dict[str, Any] = {
        "workers": {"processes": 2, "threads": 8},
        "delivery": {"results": results, "guarantee": "exactly-once"},
        "retry": {"delays": ["200ms"]},
    }
    writer = Writer(bootstrap, tmp_path / "produced")
    with service(
        tmp_path / "service",
        bootstrap,
        [source],
        handlers=SOME_AGAIN,
        settings=settings,
        prelude=OLD,
    ) as struck:
        struck.serve()
        config = toml_file.load(struck.config)
        ids = [transactional_id(config, 0), transactional_id(config, 1)]
        ids.append(transactional_id(config, "delay"))
        for number in range(1, FENCES + 1):
            for each in ids:
                fenced(bootstrap, each)
            writer.write(source, numbered(FEW, keys=100, first=(number - 1) * FEW))
            eventually(partial(_have_heard, struck, number), what="all have heard of it")
            eventually(partial(_are_written, bootstrap, results, number * FEW), every_s=0.2)
        struck.caught_up()
        struck.until(lambda: struck.state() == "running", "it is well again")
        assert struck.stop() == 0
        # Excused are only those after a request that was sent twice.
        assert all(f"{TAKEN} {each};" in struck.said() for each in ids)
    counts = Counter(read.value for read in read_all(bootstrap, results))
    assert set(counts.values()) == {1}
    assert len(counts) == FENCES * FEW
    print(f"{FENCES} fences of each of {len(ids)} ids, {len(counts)} results, each once")


def _have_heard(struck: Service, times: int) -> bool:
    """Whether each process has said so often that its id was taken, or that it may have been."""
    heard: Counter[int | str] = Counter()
    for line in map(json.loads, whole_lines(struck.output)):
        who = line.get("process", line.get("worker"))
        doubted = line["event"].startswith(IN_DOUBT) and "FENCED" in line.get("error", "")
        # The delay process tells of each failed transaction first, then who is to blame.
        heard[who] += doubted or (who != "delay" and TAKEN in line["event"])
    return all(heard[who] >= times for who in (0, 1, "delay"))


def _are_written(bootstrap: str, results: str, count: int) -> bool:
    return len(read_all(bootstrap, results)) >= count
