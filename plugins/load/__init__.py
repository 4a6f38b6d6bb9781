"""Load averages of the host."""
