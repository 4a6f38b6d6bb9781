"""Reads the plugins: when, in which thread or child process, and what happens when one fails."""
