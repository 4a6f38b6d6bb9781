"""Network namespaces of Linux, entered by one thread for a moment.

A socket stays in the namespace in which it was opened. So a thread that holds a socket of another
namespace configures that one, while it is in its own.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OWN = Path("/proc/thread-self/ns/net")
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Yield a descriptor of a namespace, such as `/proc/123/ns/net`, which keeps it until then."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def entered(descriptor: int) -> Iterator[None]:
    """Put this thread into a namespace until the end of the block. Nothing may wait in it."""
    with opened(OWN) as own:
        _check(_libc.setns(descriptor, _CLONE_NEWNET))
        try:
            yield
        finally:
            _check(_libc.setns(own, _CLONE_NEWNET))


@contextmanager
def scratch() -> Iterator[None]:
    """Put this thread into a new namespace, which ends with the block with all that is in it."""
    with opened(OWN) as own:
        _check(_libc.unshare(_CLONE_NEWNET))
        try:
            yield
        finally:
            _check(_libc.setns(own, _CLONE_NEWNET))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"can't change the network namespace: {os.strerror(number)}")
