"""Kafka and Redis in memory: the twins, for the tests of handlers and of kworker itself.

One thread uses all of it, so nothing ever waits: a call that would wait for the broker
finds everything done that could be done. Time is an argument.
"""
