"""Time since the host was booted."""

from plugins.uptime.reader import UptimePlugin

__all__ = ["UptimePlugin"]
