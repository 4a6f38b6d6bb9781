"""Slices of GPUs: what an appliance offers, what the portal orders, and what an attempt gets.

A GPU is *partitioned* in one mode at a time. Its *slots* are the memory slices of MIG, of which an
instance covers some that lie beside each other.
"""

from enum import StrEnum
from typing import Annotated

import msgspec

WHOLE_GPU = 1000
"""A GPU, in the thousandths that slices of it are counted in."""
MAX_PROFILES = 64
MAX_INSTANCES = 16
MAX_SLOTS = 16
MAX_SHARES = 48
"""As many clients as an MPS server of Volta and newer has."""
MAX_TEXT_LENGTH = 100
Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT_LENGTH)]
Slot = Annotated[int, msgspec.Meta(ge=0, le=MAX_SLOTS)]


class PartitionMode(StrEnum):
    """How a GPU is shared: not at all, by MIG instances, by MPS, or by turns."""

    WHOLE = "whole"
    MIG = "mig"
    MPS = "mps"
    TIME_SLICING = "time_slicing"


class MIGProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of MIG instance that a GPU's driver offers.

    Attributes:
        name: such as `1g.10gb`.
        profile_id: the driver's number.
        slots: how many slots an instance covers.
        starts: the first slots that it may have.
    """

    name: Text
    profile_id: int
    memory_bytes: int
    multiprocessors: int
    slots: Slot
    starts: Annotated[tuple[Slot, ...], msgspec.Meta(max_length=MAX_SLOTS)]


class MIGInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A MIG instance that exists; `start` is its first slot."""

    uuid: Text
    profile: Text
    start: Slot
    slots: Slot


class MIGPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """Where an instance of a profile is, or should be."""

    profile: Text
    start: Slot


class GPUPartition(msgspec.Struct, frozen=True, kw_only=True):
    """The order of the portal for one GPU: its mode, which changes while no job uses it.

    `layout` has the instances that stay, apart from those of attempts; without one, instances are
    made for attempts only.
    """

    gpu_uuid: Text
    mode: PartitionMode = PartitionMode.WHOLE
    layout: list[MIGPlacement] = []


class GPUSlice(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a GPU that an attempt gets.

    Attributes:
        gpu_uuid: the GPU.
        share_milli: thousandths of the GPU; of MIG, by its slots.
        memory_bytes: of the instance, or the limit under MPS; time slicing does not limit it.
        profile: under MIG, of the instance.
        start: under MIG, its first slot.
        slots: under MIG, how many it covers.
        shares: under MPS and time slicing, how many of those of the GPU.
        uuid: under MIG, of the instance, once the agent has reported it.
    """

    mode: PartitionMode
    gpu_uuid: str
    share_milli: int
    memory_bytes: int = 0
    profile: str = ""
    start: int = 0
    slots: int = 0
    shares: int = 0
    uuid: str = ""
