"""A replay: records that the group has settled go through the handler once more."""
