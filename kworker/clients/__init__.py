"""The only files that import the libraries of Kafka and Redis; `memory` has fakes for tests."""
