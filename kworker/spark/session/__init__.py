"""Spark itself: its jar files, its settings, its JVM and the session in it."""
