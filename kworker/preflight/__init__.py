"""The checks before a start: the configuration beside brokers, handlers and other copies."""
