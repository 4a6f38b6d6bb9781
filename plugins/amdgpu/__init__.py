"""AMD GPUs."""

from plugins.amdgpu.reader import AMDGPUPlugin

__all__ = ["AMDGPUPlugin"]
