"""The only files that import the libraries of Kafka and Redis; in `memory`, twins for tests."""
