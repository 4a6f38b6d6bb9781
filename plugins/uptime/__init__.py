"""Time since boot."""
