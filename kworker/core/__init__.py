"""Pure decisions: no I/O, no threads, no clock, no logging."""
