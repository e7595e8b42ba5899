"""Spans of handlers' runs, by OpenTelemetry: an extra, loaded only where `tracing` is on."""
