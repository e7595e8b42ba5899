"""The OpenTelemetry SDK of one process, which sends spans by OTLP over HTTP."""

import threading

import structlog
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import (
    SERVICE_INSTANCE_ID,
    SERVICE_NAME,
    OTELResourceDetector,
    Resource,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from kworker.distribution import package_version

_LOG = structlog.get_logger()

FLUSH_S = 2.0


class SpanExport:
    """Collects the spans of this process, and sends them in a thread of the SDK.

    Made after the fork, which that thread would not survive. No run waits for the thread: it has a
    queue of limited length, and spans that find no room in it are dropped. The variables `OTEL_…`
    of the SDK apply, and those that name the service win over the names given here.
    """

    def __init__(self, service: str, instance: str) -> None:
        """Raises ValueError if a variable `OTEL_…` has a value that cannot be used."""
        ours = Resource.create({SERVICE_NAME: service, SERVICE_INSTANCE_ID: instance})
        resource = ours.merge(OTELResourceDetector().detect())
        # At the exit of the process, the SDK's own hook would wait for up to 30 s.
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))

    @property
    def tracer(self) -> trace.Tracer:
        return self._provider.get_tracer("kworker", package_version())

    def serve_all(self) -> None:
        """Sends all spans of the process by this export, also those that the user's code makes."""
        trace.set_tracer_provider(self._provider)

    def close(self) -> None:
        """Sends the spans that are left; gives up after FLUSH_S."""
        ending = threading.Thread(target=self._provider.shutdown, name="spans", daemon=True)
        ending.start()
        ending.join(FLUSH_S)
        if ending.is_alive():
            _LOG.warning(
                f"the last spans could not be sent within {FLUSH_S:g} s; they are dropped, and the"
                " process ends"
            )
