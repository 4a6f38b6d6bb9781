"""Who uses the GPUs."""

from plugins.gpu_processes.reader import GPUProcessesPlugin

__all__ = ["GPUProcessesPlugin"]
