"""Docker containers."""

from plugins.containers.reader import ContainersPlugin

__all__ = ["ContainersPlugin"]
