"""Commands on records of a topic: send, tail, try."""
