"""Reads the members of a consumer group in a separate process, which the request may crash.

With librdkafka 2.16, an administrator's request to a group's coordinator may abort the process
if the coordinator goes away during the request, or comes back after that (librdkafka #4605).

`python -m kworker.clients.roster` reads `{"properties": …, "group": …}` and writes member ids.
"""

import json
import logging
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

# This module imports nothing else: a standby waits for its start.
REQUEST_TIMEOUT_S = 3.0
TIMEOUT_S = 10.0  # of the process, which has to start
_QUIET = logging.getLogger("librdkafka.roster")
_QUIET.setLevel(logging.CRITICAL + 1)


def members(properties: Mapping[str, Any], group: str) -> frozenset[str] | None:
    """Returns the member ids of a group; None without an answer in `TIMEOUT_S`. Blocks."""
    asked = json.dumps({"properties": dict(properties), "group": group})
    command = [sys.executable, "-P", "-m", __name__]
    try:
        done = subprocess.run(command, input=asked.encode(), capture_output=True, timeout=TIMEOUT_S)
        return None if done.returncode else frozenset(json.loads(done.stdout))
    except (subprocess.TimeoutExpired, OSError, ValueError):
        return None


def main() -> None:
    asked = json.load(sys.stdin)
    group = asked["group"]
    admin = AdminClient(asked["properties"], logger=_QUIET)
    described = admin.describe_consumer_groups([group], request_timeout=REQUEST_TIMEOUT_S)[group]
    try:
        found = described.result(2 * REQUEST_TIMEOUT_S)
        members = [each.member_id for each in found.members]
    except (KafkaException, TimeoutError) as error:
        if not _is_unknown(error):
            raise SystemExit(str(error)) from None
        members = []
    json.dump(members, sys.stdout)


def _is_unknown(error: Exception) -> bool:
    kafka = error.args[0] if isinstance(error, KafkaException) else None
    return kafka is not None and kafka.code() == KafkaError.GROUP_ID_NOT_FOUND


if __name__ == "__main__":
    main()
