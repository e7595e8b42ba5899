"""Outputs and committed positions: durable at least once, or exactly once."""
