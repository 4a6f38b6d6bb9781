"""The interface of drivers that cut GPUs by MIG.

A MIG instance is a *GPU instance*, which has the memory, with a *compute instance* in it. One
without a compute instance is left when a program ends between the two steps: it has no UUID.
"""

from typing import Protocol

import msgspec

from protocol.gpu_slices import MIGInstance, MIGProfile


class MIGError(Exception):
    """The driver does not do it; the message says why and what to do."""


class MIGInUseError(MIGError):
    """A process still uses the GPU or the instance."""


class MIGPermissionError(MIGError):
    """This agent may not cut GPUs."""


class MIGGPU(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU that knows MIG.

    Attributes:
        is_enabled: the current mode.
        is_pending: the mode after the next reset.
        profiles: none while the mode is off, with drivers that don't know them then.
        instances: all of them; the UUID of one without a compute instance is "".
    """

    uuid: str
    is_enabled: bool = False
    is_pending: bool = False
    profiles: list[MIGProfile] = []
    instances: list[MIGInstance] = []


class MIGDriver(Protocol):
    """Cuts GPUs by MIG. For one thread at a time.

    Instances on a GPU don't overlap, so that a GPU and a first slot say which one it is.
    """

    def read(self) -> list[MIGGPU]:
        """Return the GPUs that know MIG; none on a host without.

        Raises:
            MIGError: the driver does not answer.
        """

    def set_mode(self, gpu_uuid: str, *, enabled: bool) -> None:
        """Switch MIG on or off, which some GPUs do at their next reset only.

        Raises:
            MIGInUseError: a process uses the GPU.
            MIGError: the driver refuses.
        """

    def create(self, gpu_uuid: str, profile: str, start: int) -> MIGInstance:
        """Make an instance, or complete one that has no compute instance.

        Raises:
            MIGError: the driver refuses, as when the slots are taken.
        """

    def destroy(self, gpu_uuid: str, start: int) -> None:
        """Destroy an instance, with its compute instances; nothing if there is none.

        Raises:
            MIGInUseError: a process uses it.
            MIGError: the driver refuses.
        """

    def close(self) -> None:
        """Close the driver."""
