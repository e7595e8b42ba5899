"""Spans of handlers' runs, by OpenTelemetry: an extra, imported only where `tracing` is on."""
