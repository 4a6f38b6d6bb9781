"""Whether NVIDIA's driver is on this host, told without importing its bindings."""

import ctypes

from plugins.base import PluginUnavailableError

DRIVER_LIBRARY = "libnvidia-ml.so.1"


def driver_is_present() -> bool:
    """Return whether the driver's library can be loaded; it is not spoken to."""
    try:
        ctypes.CDLL(DRIVER_LIBRARY)
    except OSError:
        return False
    return True


def require_driver() -> None:
    """Return when there is a driver.

    Raises:
        PluginUnavailableError: there is none.
    """
    if not driver_is_present():
        raise PluginUnavailableError(f"no NVIDIA driver here: {DRIVER_LIBRARY} can't be loaded")
