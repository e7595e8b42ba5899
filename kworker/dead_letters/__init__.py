"""Dead letters: what they say, and how a person reads, mends and resolves them."""
