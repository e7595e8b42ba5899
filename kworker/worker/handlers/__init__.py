"""User handlers: loaded, called in pools, and their results made into records."""
