"""Space and inodes of file systems."""

from plugins.disk.reader import DiskPlugin

__all__ = ["DiskPlugin"]
