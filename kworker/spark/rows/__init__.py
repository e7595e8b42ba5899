"""The rows of a table: from the records of the results topic to columns."""
