"""How transactions ended, as the log of their coordinator tells."""

import struct
from collections import Counter
from collections.abc import Collection

from tests.support.authors import IDS
from tests.support.encoding import Reader
from tests.support.kafka import messages

COMMITTED = 4  # the state when all partitions have the marker
STATE = 2 + 8 + 2 + 4  # behind the version, the producer and its epoch, and the time-out


def committed(bootstrap: str, ids: Collection[str]) -> int:
    """How many transactions under these transactional ids were committed."""
    found: Counter[str] = Counter()
    for message in messages(bootstrap, IDS):
        if message.value() is None:
            continue
        key = Reader(message.key())
        key.skip("h")
        (state,) = struct.unpack_from(">b", message.value(), STATE)
        found[key.text()] += state == COMMITTED
    return sum(found[each] for each in ids)
