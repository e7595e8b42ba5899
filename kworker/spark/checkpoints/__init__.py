"""How far each table is: checkpoints, the marks of commits, and whether a query may start."""
