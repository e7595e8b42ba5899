"""The console: a process that shows the service over HTTP, read-only."""
