"""`kworker spark …`: the Spark job by hand, and the tables that it left."""
