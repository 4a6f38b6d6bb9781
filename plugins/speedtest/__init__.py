"""Speed of the line to the access point."""

from plugins.speedtest.reader import SpeedtestPlugin

__all__ = ["SpeedtestPlugin"]
