"""CPU use of the host."""
