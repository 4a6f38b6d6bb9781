"""Processes by state."""

from plugins.processes.reader import ProcessesPlugin

__all__ = ["ProcessesPlugin"]
