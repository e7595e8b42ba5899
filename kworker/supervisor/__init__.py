"""The parent process: it forks the others, monitors them, drains them and reports on them."""
