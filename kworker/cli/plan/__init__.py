"""The verb that estimates the workers for a rate."""
