"""Traffic of block devices."""

from plugins.diskio.reader import DiskIOPlugin

__all__ = ["DiskIOPlugin"]
