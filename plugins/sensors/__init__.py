"""Temperatures, fans, voltages and power of the host."""

from plugins.sensors.reader import SensorsPlugin

__all__ = ["SensorsPlugin"]
