"""Checks that spans could be sent from this host."""

from kworker.config.model import Config
from kworker.preflight.findings import Finding


def check_tracing(config: Config) -> list[Finding]:
    """If runs are traced, checks OpenTelemetry's installation and the variables `OTEL_…`."""
    if not config.tracing.enabled:
        return []
    # With it come the handlers and an event loop, for which no other command should wait.
    from kworker.worker.tracing.assembly import TracingUnusable, open_export

    try:
        open_export(config, "check").close()
    except TracingUnusable as error:
        return [Finding("tracing.enabled", error.problem, error.step)]
    return []
