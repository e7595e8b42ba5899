"""Files, locks and memory that the processes of one instance share on a host."""
