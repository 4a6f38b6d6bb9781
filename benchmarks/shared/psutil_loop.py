"""The floor: a bare loop that reads the same with psutil once a second, and does nothing with it.

It has no rates, no buffer and no portal. What an agent costs beyond it is what those cost.
"""

import contextlib
import time

import psutil


def read_all() -> None:
    """Read every metric of the host once."""
    psutil.cpu_times(percpu=True)
    psutil.cpu_times()
    psutil.cpu_stats()
    psutil.virtual_memory()
    psutil.swap_memory()
    psutil.getloadavg()
    for partition in psutil.disk_partitions():
        psutil.disk_usage(partition.mountpoint)
    psutil.disk_io_counters(perdisk=True)
    psutil.net_io_counters(pernic=True)
    psutil.boot_time()
    psutil.sensors_temperatures()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            process.status()
            process.num_threads()


if __name__ == "__main__":
    while True:
        read_all()
        time.sleep(1.0)
