"""Docker containers."""
