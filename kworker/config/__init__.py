"""The configuration: its model, the file and environment it comes from, the rules it must keep."""
