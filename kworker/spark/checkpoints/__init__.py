"""The progress of each table: checkpoints, marks of commits, and the check before a start."""
