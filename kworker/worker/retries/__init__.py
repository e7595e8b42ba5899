"""Failed runs: another attempt, a dead letter, or a wait until a service is back."""
