"""The verb that shows the service's log, and says where it is."""
