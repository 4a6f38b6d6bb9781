"""Processes by state."""
