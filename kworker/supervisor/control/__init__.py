"""The control socket: how commands reach a running supervisor, and what it answers."""
