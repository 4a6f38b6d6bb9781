"""CPU use of the host."""

from plugins.cpu.reader import CPUPlugin

__all__ = ["CPUPlugin"]
