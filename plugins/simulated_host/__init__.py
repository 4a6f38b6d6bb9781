"""The simulated appliance's host."""

from plugins.simulated_host.reader import SimulatedHostPlugin

__all__ = ["SimulatedHostPlugin"]
