"""`kworker dead …`: what waits in the dead-letter topic, and what is done about it."""
