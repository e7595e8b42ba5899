"""The checks before a start. Only the last changes anything: it commits first positions.

Some of them import the Kafka client, so the supervisor runs the checks in a short-lived child
process.
"""

from kworker.config.model import Config
from kworker.errors import ExitCode
from kworker.preflight.findings import Finding, exit_code
from kworker.preflight.imports import check_handlers
from kworker.preflight.kafka import check_client_properties, check_topics
from kworker.preflight.positions import ensure_start_offsets
from kworker.preflight.redis import check_redis
from kworker.preflight.tracing import check_tracing


def before_start(config: Config) -> list[Finding]:
    """Runs all checks of `kworker start`; if they pass, commits a new group's first positions."""
    found = [*check_handlers(config), *check_client_properties(config), *check_tracing(config)]
    if exit_code(found) is ExitCode.OK:
        found += [*check_topics(config), *check_redis(config)]
    if exit_code(found) is ExitCode.OK:
        found += ensure_start_offsets(config)
    return found
