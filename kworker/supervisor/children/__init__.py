"""The processes that the supervisor starts, and how it starts each again."""
