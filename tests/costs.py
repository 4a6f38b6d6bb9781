"""What one untrusted input may cost: 100 ms of CPU, and 32 MiB of memory.

The time is that of the thread, so that other tests on the machine don't count; a slow call is
repeated before it counts, because its first one may load modules or wait for shared caches.
"""

import time
import tracemalloc
from collections.abc import Callable

MAX_CPU_SECONDS = 0.1
MAX_BYTES = 32 * 1024 * 1024
_TRIES = 3


def check_cost(call: Callable[[], object]) -> None:
    """Assert that a call is cheap; it must not raise."""
    cpu_seconds = min(_until_cheap(call))
    assert cpu_seconds <= MAX_CPU_SECONDS, f"took {cpu_seconds * 1000:.0f} ms of CPU"
    tracemalloc.start()
    try:
        call()
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes <= MAX_BYTES, f"took {peak_bytes / 1024**2:.0f} MiB"


def _until_cheap(call: Callable[[], object]) -> list[float]:
    spent: list[float] = []
    while len(spent) < _TRIES and (not spent or spent[-1] > MAX_CPU_SECONDS):
        started = time.thread_time()
        call()
        spent.append(time.thread_time() - started)
    return spent
