"""Traffic of network interfaces."""

from plugins.network.reader import NetworkPlugin

__all__ = ["NetworkPlugin"]
