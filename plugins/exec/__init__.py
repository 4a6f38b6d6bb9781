"""Readings that other programs write, as lines of collectd's `PUTVAL`."""

from plugins.exec.reader import ExecPlugin

__all__ = ["ExecPlugin"]
