"""Temperatures, fans, voltages and power of the host."""
