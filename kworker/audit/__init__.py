"""The audit: accounts for every record of the source topics, from topics and tables alone."""
