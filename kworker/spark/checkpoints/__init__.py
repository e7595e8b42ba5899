"""The progress of each table: checkpoints, marks in commits, and the check before a start."""
