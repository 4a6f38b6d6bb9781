"""GPU use by owner."""
