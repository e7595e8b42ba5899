"""Spark itself: its archives, its settings, its JVM and the session in it."""
