"""Asks for the members of a consumer group in a process of its own, which may die of it.

With librdkafka 2.16, whatever a client asks of a group's coordinator as an administrator may
abort its process when the coordinator goes away meanwhile, or is back after it (librdkafka #4605).

`python -m kworker.clients.roster` reads `{"properties": …, "group": …}` and writes member ids.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kworker.clients.admin import SILENT

REQUEST_TIMEOUT_S = 3.0
TIMEOUT_S = 10.0  # of the process, which has to start


def members(properties: Mapping[str, Any], group: str) -> frozenset[str] | None:
    """The ids of a group's members; None when nobody told them in `TIMEOUT_S`. Blocks."""
    asked = json.dumps({"properties": dict(properties), "group": group})
    command = [sys.executable, "-P", "-m", __name__]
    try:
        done = subprocess.run(command, input=asked.encode(), capture_output=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return None
    return None if done.returncode else frozenset(json.loads(done.stdout))


def main() -> None:
    asked = json.load(sys.stdin)
    group = asked["group"]
    admin = AdminClient(asked["properties"], logger=SILENT)
    described = admin.describe_consumer_groups([group], request_timeout=REQUEST_TIMEOUT_S)[group]
    try:
        found = described.result(2 * REQUEST_TIMEOUT_S)
    except (KafkaException, TimeoutError) as error:
        raise SystemExit(str(error)) from None
    json.dump([each.member_id for each in found.members], sys.stdout)


if __name__ == "__main__":
    main()
