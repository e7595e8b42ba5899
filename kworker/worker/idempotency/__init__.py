"""Duplicate protection: what Redis knows of an event, asked before its handler runs."""
