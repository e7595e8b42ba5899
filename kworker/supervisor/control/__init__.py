"""The control socket: the commands' requests to a running supervisor, and its replies."""
