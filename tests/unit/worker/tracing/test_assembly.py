"""The start of tracing: what it needs, and what it takes from the environment."""

import sys
import threading
from pathlib import Path

import pytest

from kworker.config import toml_file
from kworker.config.model import Config
from kworker.errors import ExitCode
from kworker.preflight.tracing import check_tracing
from kworker.worker.handlers.tracing import UNTRACED
from kworker.worker.tracing.assembly import TracingUnusable, make_tracing, open_export
from kworker.worker.tracing.span_export import SpanExport

EXPORT = "kworker.worker.tracing.span_export"


def configured(folder: Path, *, enabled: bool = True) -> Config:
    tables = {
        "name": "orders",
        "handler": "json:loads",
        "instance": "host-1",
        "source": {"topics": ["orders"]},
        "kafka": {"bootstrap.servers": "127.0.0.1:1"},
        "tracing": {"enabled": enabled},
    }
    return toml_file.from_tables(tables, folder / "kworker.toml", {})


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if "Otel" in thread.name}


def test_tracing_is_off_and_then_wraps_nothing(tmp_path: Path) -> None:
    """What a pool calls for each record is the very function that it would call anyway."""
    tracing = make_tracing(configured(tmp_path, enabled=False), "0")
    assert tracing is UNTRACED
    for wrap in (
        tracing.invoke,
        tracing.async_steps,
        tracing.batch_call,
        tracing.async_batch_call,
    ):
        function = object()
        assert wrap(function) is function
    assert check_tracing(configured(tmp_path, enabled=False)) == []
    assert not threads()


def test_without_the_extra_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, EXPORT)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(TracingUnusable) as refused:
        make_tracing(configured(tmp_path), "0")
    assert refused.value.exit_code is ExitCode.CONFIG
    [line] = str(refused.value).splitlines()
    assert line.startswith("tracing.enabled: OpenTelemetry is not installed (")
    assert "; install it: pip install" in line
    [found] = check_tracing(configured(tmp_path))
    assert (found.key, str(found)) == ("tracing.enabled", line)


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "by http/protobuf only"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", "by http/protobuf only"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0", "max_queue_size must be a positive integer"),
    ],
)
def test_a_variable_that_asks_for_what_cannot_be_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, told: str
) -> None:
    monkeypatch.setenv(variable, value)
    [found] = check_tracing(configured(tmp_path))
    assert told in found.problem
    assert "OTEL_" in found.next_step


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ("authorization=Bearer canary", True),
        ("authorization=Bearer%20canary, x-team = a=b ,", True),
        ("Bearer canary", False),
        ("authorization=canary,secret", False),
        ("authorization=a;canary", False),
        ('authorization="canary"', False),
        ("authorization=canaryé", False),
    ],
)
def test_a_header_that_the_sdk_would_log_is_refused_unseen(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    value: str,
    fits: bool,
) -> None:
    """It is most likely a secret."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", value)
    found = check_tracing(configured(tmp_path))
    assert bool(found) is not fits
    assert "canary" not in f"{found}{caplog.text}"


def test_a_check_leaves_nothing_behind(tmp_path: Path) -> None:
    assert check_tracing(configured(tmp_path)) == []
    assert not threads()


def resource(export: SpanExport) -> dict[str, object]:
    span = export.tracer.start_span("s")
    return dict(span.resource.attributes)


def test_the_service_is_named_as_here_unless_the_environment_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = open_export(configured(tmp_path), "3")
    found = resource(export)
    export.close()
    assert (found["service.name"], found["service.instance.id"]) == ("orders", "host-1:3")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=pod-7,team=a")
    export = open_export(configured(tmp_path), "3")
    found = resource(export)
    export.close()
    named = [found[name] for name in ("service.name", "service.instance.id", "team")]
    assert named == ["shop", "pod-7", "a"]
