"""Makes the tracing of a process, as its configuration says."""

import os
import re
from typing import TYPE_CHECKING

from kworker.config.model import Config
from kworker.distribution import how_to_install
from kworker.errors import ConfigError
from kworker.worker.handlers.tracing import UNTRACED, Tracing

if TYPE_CHECKING:
    from kworker.worker.tracing.span_export import SpanExport

_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"
_HEADERS = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
# As the SDK takes them: it leaves out any other, and writes it to the log, secret or not.
_HEADER = re.compile(r"[ \t]*[\w!#$%&'*+.^`|~-]+[ \t]*=[ \t!#-+\--:<-\[\]-~]*", re.ASCII)


class TracingUnusable(ConfigError):
    """Raised if `tracing.enabled` is on, but no spans could be sent.

    `problem` says why, and `step` what to do.
    """

    def __init__(self, problem: str, step: str) -> None:
        super().__init__(f"tracing.enabled: {problem}; {step}")
        self.problem = problem
        self.step = step


def make_tracing(config: Config, process: str) -> Tracing:
    """Makes the tracing of this process. `process` names it in the spans.

    Called after the fork, and before handlers are imported, so that the spans that handlers
    themselves make are sent, too. Raises TracingUnusable if no spans could be sent.
    """
    if not config.tracing.enabled:
        return UNTRACED
    export = open_export(config, process)
    export.serve_all()
    from kworker.worker.tracing.run_spans import RunSpans
    from kworker.worker.tracing.traced_runs import TracedRuns

    return TracedRuns(RunSpans(export.tracer, config.name), export.close)


def open_export(config: Config, process: str) -> "SpanExport":
    """Starts the SDK; does not look whether a collector answers.

    Raises TracingUnusable if the SDK is not installed, or if a variable `OTEL_…` has a value that
    kworker or the SDK does not support.
    """
    _check_variables()
    try:
        from kworker.worker.tracing.span_export import SpanExport
    except ImportError as error:
        raise TracingUnusable(
            f"OpenTelemetry is not installed ({error})", f"install it: {how_to_install('otel')}"
        ) from None
    try:
        return SpanExport(config.name, f"{config.instance}:{process}")
    except ValueError as error:
        raise TracingUnusable(
            f"OpenTelemetry refuses an environment variable ({error})",
            "correct the variables OTEL_…",
        ) from None


def _check_variables() -> None:
    for variable in _PROTOCOLS:
        if (asked := os.environ.get(variable, "")) not in ("", _PROTOCOL):
            raise TracingUnusable(
                f"${variable} is {asked!r}, but spans are sent by {_PROTOCOL} only",
                "unset it, and let OTEL_EXPORTER_OTLP_ENDPOINT name an HTTP port, such as 4318",
            )
    for variable in _HEADERS:
        pairs = filter(str.strip, os.environ.get(variable, "").split(","))
        if not all(_HEADER.fullmatch(pair) for pair in pairs):
            raise TracingUnusable(
                f"${variable} is no list of name=value",
                "put a comma between two, and write special characters as % and their code",
            )
