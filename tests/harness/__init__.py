"""Proof from outside: a service run as users run it, ledgers outside Kafka, oracles over both."""
