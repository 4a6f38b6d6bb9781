"""Reads the plugins: when, in which thread or worker process, and what happens when one fails."""
