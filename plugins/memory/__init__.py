"""Main memory of the host."""
