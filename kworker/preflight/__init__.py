"""The checks before a start, of the brokers, the handlers and other copies of the instance."""
