"""The only files that import Kafka's and Redis's libraries, and their in-memory twins."""
