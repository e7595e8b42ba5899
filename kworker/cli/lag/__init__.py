"""The verb that tells how far the service's groups are behind, from Kafka alone."""
