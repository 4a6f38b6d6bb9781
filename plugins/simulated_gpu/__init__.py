"""The simulated appliance's GPUs."""

from plugins.simulated_gpu.reader import SimulatedGPUPlugin

__all__ = ["SimulatedGPUPlugin"]
