"""The parent process: forks, watches, drains, tells."""
