"""Duplicate protection: an event is claimed in Redis before its handler runs."""
