"""The verbs, one file a group."""
