"""`kworker dead`: shows dead letters and repairs them."""
