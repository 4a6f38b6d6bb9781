"""Main memory of the host."""

from plugins.memory.reader import MemoryPlugin

__all__ = ["MemoryPlugin"]
