"""`kworker spark …`: runs the Spark job by hand, shows its state, and repairs its tables."""
