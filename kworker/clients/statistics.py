"""A consumer's membership in its group, as the client's statistics show it."""

import orjson

from kworker.core.membership import Absence


def absence_in(statistics: str, *, newer: bool) -> Absence | None:
    """Returns the reason why a consumer takes no part in its group; None if it takes part.

    `statistics` are those of its client. `newer` is True for the group protocol of KIP-848.
    """
    # The group's part alone: the rest is long where there are many partitions.
    begin = statistics.rindex('"cgrp":') + len('"cgrp":')
    group = orjson.loads(statistics[begin : statistics.index("}", begin) + 1])
    if group["state"] != "up":
        return Absence.COORDINATOR
    if group["join_state"] == "init":
        return None if newer and _is_answered(statistics) else Absence.JOINING
    return None if group["join_state"] == "steady" else Absence.REBALANCE


def _is_answered(statistics: str) -> bool:
    """Returns True if the coordinator has answered a heartbeat of the newer protocol.

    In that protocol, librdkafka reports a member without partitions as not yet joined. Its
    statistics count heartbeats among the answers, but not among the requests. So there are more
    answers than requests once a heartbeat was answered.
    """
    coordinator = orjson.loads(statistics)["brokers"].get("GroupCoordinator")
    return coordinator is not None and bool(coordinator["rx"] > sum(coordinator["req"].values()))
