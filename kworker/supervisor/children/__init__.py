"""The processes that the supervisor starts and restarts."""
