"""Slices of GPUs: what a job needs, what a GPU offers, and what of it the job would get.

Each GPU is of a *kind*: its mode with profiles and layout, or shares. For a need, a kind has
*options*: the profiles that suffice, the smallest first, or a number of shares.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import ceil
from typing import NamedTuple

import msgspec

from core.quantities import format_size
from jobqueue.partitions.isolation import IsolationRules
from jobqueue.partitions.mig import Profiles, best_start, bits, share_milli
from protocol.gpu_slices import WHOLE_GPU, GPUSlice, MIGPlacement, MIGProfile, PartitionMode

# Answers that are remembered, by kind and need.
CACHED = 10_000
# Shares of a quarter of the memory must not fail for a rounding error.
_TOLERANCE = 1e-6


class SliceNeed(NamedTuple):
    """The part of a GPU that a job needs.

    Attributes:
        profile: of MIG; "" for any slice that suffices.
        memory_bytes: the least memory.
        compute: the least share of the multiprocessors.
    """

    profile: str = ""
    memory_bytes: int = 0
    compute: float = 0.0

    def __str__(self) -> str:
        """Return it as texts show it, such as `8 GiB of a GPU`."""
        compute = f"{self.compute:g} of a GPU's multiprocessors" if self.compute else ""
        memory = f"{format_size(self.memory_bytes)} of a GPU" if self.memory_bytes else ""
        return self.profile or " with ".join(filter(None, (memory, compute))) or "a part of a GPU"


class SliceRequest(NamedTuple):
    """The part of a GPU that a job needs, and whose job it is."""

    need: SliceNeed = SliceNeed()
    user_id: str | None = None
    project_id: str | None = None


class GPUKind(msgspec.Struct, frozen=True, kw_only=True):
    """How a GPU is shared, by its policy and its driver.

    Attributes:
        profiles: of MIG, as the driver offers them.
        layout: the MIG instances that stay; none makes them on demand.
        may_change_layout: whether an idle GPU may be cut otherwise for a waiting job.
        shares: into how many MPS and time slicing divide it.
    """

    mode: PartitionMode
    memory_bytes: int = 0
    profiles: Profiles = ()
    layout: tuple[MIGPlacement, ...] = ()
    may_change_layout: bool = False
    shares: int = 1

    @property
    def offered(self) -> Profiles:
        """The profiles of which instances can be had: those of a layout that may not change."""
        fixed = {place.profile for place in self.layout}
        is_fixed = bool(fixed) and not self.may_change_layout
        return tuple(
            profile
            for profile in self.profiles
            if profile.starts and (profile.name in fixed or not is_fixed)
        )


class Part(NamedTuple):
    """What one job has of one GPU: an instance's slots, or shares."""

    mode: PartitionMode
    milli: int
    user_id: str | None = None
    project_id: str | None = None
    profile: str = ""
    start: int = 0
    slots: int = 0
    shares: int = 0

    @classmethod
    def of(cls, held: GPUSlice, user_id: str | None, project_id: str | None) -> "Part":
        """Return the part that an attempt has."""
        owner = (user_id, project_id)
        return cls(
            held.mode, held.share_milli, *owner, held.profile, held.start, held.slots, held.shares
        )

    def slice_of(self, gpu_uuid: str, kind: GPUKind) -> GPUSlice:
        """Return it as an attempt has it."""
        memory_bytes = kind.memory_bytes * self.shares // max(1, kind.shares)
        profiles = {profile.name: profile.memory_bytes for profile in kind.profiles}
        return GPUSlice(
            mode=self.mode,
            gpu_uuid=gpu_uuid,
            share_milli=self.milli,
            memory_bytes=profiles.get(self.profile, memory_bytes),
            profile=self.profile,
            start=self.start,
            slots=self.slots,
            shares=self.shares,
        )


class Option(NamedTuple):
    """What of a kind would suffice: a MIG profile, or some shares."""

    milli: int
    profile: MIGProfile | None = None
    shares: int = 0


@lru_cache(CACHED)
def options(kind: GPUKind, need: SliceNeed) -> Sequence[Option]:
    """Return what suffices of a GPU of a kind, the smallest first; nothing if nothing does."""
    if kind.mode is PartitionMode.MIG:
        total = max((profile.multiprocessors for profile in kind.profiles), default=0)
        enough = [profile for profile in kind.offered if _suffices(profile, need, total)]
        enough.sort(key=lambda profile: (profile.slots, profile.memory_bytes, profile.name))
        return [Option(share_milli(profile, kind.profiles), profile) for profile in enough]
    if kind.mode is PartitionMode.WHOLE or need.profile or not kind.shares:
        return ()
    memory = need.memory_bytes / kind.memory_bytes if kind.memory_bytes else 0.0
    if need.memory_bytes and not kind.memory_bytes:
        return ()
    shares = max(1, ceil(max(memory, need.compute) * kind.shares - _TOLERANCE))
    milli = shares * WHOLE_GPU // kind.shares
    return [Option(milli, shares=shares)] if shares <= kind.shares else ()


def _suffices(profile: MIGProfile, need: SliceNeed, total: int) -> bool:
    if need.profile:
        return profile.name == need.profile
    # Profiles with media engines (`+me`) or graphics are for those who name them.
    is_plain = "+" not in profile.name and "-" not in profile.name
    compute = profile.multiprocessors / total if total else 0.0
    return (
        is_plain
        and profile.memory_bytes >= need.memory_bytes
        and compute >= need.compute - _TOLERANCE
    )


def fitting_part(
    kind: GPUKind, parts: Sequence[Part], request: SliceRequest, rules: IsolationRules
) -> Part | None:
    """Return the part that a job would get of a GPU with others on it; None if it doesn't fit."""
    if not all(_may_share(kind.mode, part, request, rules) for part in parts):
        return None
    if any(part.mode is not kind.mode for part in parts):
        return None
    owner = (request.user_id, request.project_id)
    if kind.mode is not PartitionMode.MIG:
        left = kind.shares - shares_taken(kind, parts)
        fitting = (option for option in options(kind, request.need) if option.shares <= left)
        option = next(fitting, None)
        return option and Part(kind.mode, option.milli, *owner, shares=option.shares)
    taken = slots_taken(parts)
    is_changed = not {(part.profile, part.start) for part in parts} <= places_of(kind.layout)
    for option in options(kind, request.need):
        profile = option.profile
        if profile is None:
            continue
        start = start_of(kind, profile, taken, is_changed=is_changed)
        if start is not None:
            return Part(kind.mode, option.milli, *owner, profile.name, start, profile.slots)
    return None


def start_of(kind: GPUKind, profile: MIGProfile, taken: int, *, is_changed: bool) -> int | None:
    """Return the first slot of a new instance: one of the layout before a change of it."""
    if kind.layout and not is_changed:
        starts = [
            place.start
            for place in kind.layout
            if place.profile == profile.name and not taken & bits(place.start, profile.slots)
        ]
        if starts:
            return min(starts)
        if taken or not kind.may_change_layout:
            return None
    return best_start(kind.profiles, profile, taken)


def shares_taken(kind: GPUKind, parts: Iterable[Part]) -> int:
    """Return how many shares jobs have, also of those that started with fewer, larger shares."""
    return sum(max(part.shares, ceil(part.milli * kind.shares / WHOLE_GPU)) for part in parts)


def slots_taken(parts: Iterable[Part]) -> int:
    """Return the mask of the slots that MIG instances cover."""
    taken = 0
    for part in parts:
        taken |= bits(part.start, part.slots)
    return taken


def places_of(layout: Iterable[MIGPlacement]) -> set[tuple[str, int]]:
    """Return profiles and first slots of a layout."""
    return {(place.profile, place.start) for place in layout}


def _may_share(
    mode: PartitionMode, part: Part, request: SliceRequest, rules: IsolationRules
) -> bool:
    # Two users who were deleted are not the same one.
    is_same_user = part.user_id is not None and part.user_id == request.user_id
    is_same_project = part.project_id is not None and part.project_id == request.project_id
    return rules.may_share(mode, is_same_user=is_same_user, is_same_project=is_same_project)
