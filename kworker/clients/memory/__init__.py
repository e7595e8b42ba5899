"""Kafka and Redis in memory: twins of the real clients, to test handlers and kworker itself.

One thread uses all of it, and no call waits: where a real client would wait for the broker, the
broker in memory has already done all that it can. A test may pass its own clock.
"""
