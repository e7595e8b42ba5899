"""Outputs and committed positions: durable at least once, or exactly once.

An outcome goes from the outbox into a batch, and is settled when the guarantee says that the
batch is in Kafka. An outcome that a topic refused goes back into the outbox.
"""
