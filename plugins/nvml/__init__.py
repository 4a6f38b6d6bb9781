"""NVIDIA GPUs, through NVML."""

from plugins.nvml.reader import NVMLPlugin

__all__ = ["NVMLPlugin"]
