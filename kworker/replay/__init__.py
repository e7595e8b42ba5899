"""A replay: what the group has settled goes through the handler once more."""
