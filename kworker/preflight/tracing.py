"""Checks that spans could be sent from this host."""

from kworker.config.model import Config
from kworker.preflight.findings import Finding
from kworker.worker.tracing.assembly import TracingUnusable, open_export


def check_tracing(config: Config) -> list[Finding]:
    """Checks, if runs are to be traced, that OpenTelemetry is installed and takes its variables."""
    if not config.tracing.enabled:
        return []
    try:
        open_export(config, "check").close()
    except TracingUnusable as error:
        return [Finding("tracing.enabled", error.problem, error.step)]
    return []
