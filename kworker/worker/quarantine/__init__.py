"""Suspects of a crash: run apart from the worker, in a process that may die of them."""
