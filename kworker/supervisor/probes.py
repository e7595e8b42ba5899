"""The judgements of the probes: why a service is not ready, and why its start is not over."""

from collections.abc import Mapping
from typing import Any

_READY = ("running", "paused")


def why_not_ready(document: Mapping[str, Any]) -> list[str]:
    """Returns the reasons in a status document why the service is not ready; [] if it is ready.

    It is ready when every worker has joined the group, the brokers answer, and nothing is red.
    """
    if document["state"] not in _READY:
        return document["reasons"] or [f"the service is {document['state']}"]
    return [
        f"worker {worker['slot']} has not joined its group ({worker['phase']})"
        for worker in document["workers"]
        if worker["phase"] != "running"
    ]


def why_not_started(document: Mapping[str, Any]) -> list[str]:
    """Returns the reasons why the start is not over; [] once every worker has joined."""
    if document["joined"]:
        return []
    return document["reasons"] or ["not every worker has joined its group yet"]
