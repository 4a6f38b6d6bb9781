"""Load averages of the host."""

from plugins.load.reader import LoadPlugin

__all__ = ["LoadPlugin"]
