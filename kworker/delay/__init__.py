"""The delay process: holds each record of the delay topics until its time, then requeues it."""
