"""The parent process, which starts, monitors and drains all others, and reports on them."""
