"""One worker process: poll thread, pool, publisher."""
