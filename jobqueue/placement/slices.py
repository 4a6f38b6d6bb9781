"""Slices of the GPUs of a fleet while a plan grows: which GPUs have room for which.

Each GPU is of a *kind*: its mode with profiles and layout, or shares. For a request, a kind has
*options*: the profiles that suffice, the smallest first, or a number of shares. What is on a GPU is
kept twice: as the parts themselves, and as arrays over the fleet, so that one look finds room.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from math import ceil
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from core.quantities import format_size
from jobqueue.partitions.isolation import IsolationRules
from jobqueue.partitions.mig import Profiles, best_start, bits, share_milli, slots_of
from protocol.gpu_slices import WHOLE_GPU, GPUSlice, MIGPlacement, MIGProfile, PartitionMode

Mask = NDArray[np.bool_]
_NOBODY, _SEVERAL = -1, -2
# Answers that are remembered, by kind and need.
_CACHED = 10_000
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


@lru_cache(_CACHED)
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
        left = kind.shares - sum(part.shares for part in parts)
        fitting = (option for option in options(kind, request.need) if option.shares <= left)
        option = next(fitting, None)
        return option and Part(kind.mode, option.milli, *owner, shares=option.shares)
    taken = _taken(parts)
    is_changed = not {(part.profile, part.start) for part in parts} <= _places(kind.layout)
    for option in options(kind, request.need):
        profile = option.profile
        if profile is None:
            continue
        start = _start(kind, profile, taken, is_changed=is_changed)
        if start is not None:
            return Part(kind.mode, option.milli, *owner, profile.name, start, profile.slots)
    return None


def _start(kind: GPUKind, profile: MIGProfile, taken: int, *, is_changed: bool) -> int | None:
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


def _taken(parts: Iterable[Part]) -> int:
    taken = 0
    for part in parts:
        taken |= bits(part.start, part.slots)
    return taken


def _places(layout: Iterable[MIGPlacement]) -> set[tuple[str, int]]:
    return {(place.profile, place.start) for place in layout}


def _may_share(
    mode: PartitionMode, part: Part, request: SliceRequest, rules: IsolationRules
) -> bool:
    is_same_project = part.project_id is not None and part.project_id == request.project_id
    return rules.may_share(
        mode, is_same_user=part.user_id == request.user_id, is_same_project=is_same_project
    )


@lru_cache(_CACHED)
def _fit_table(kind: GPUKind, need: SliceNeed, *, is_changed: bool) -> Mask:
    """Return for each mask of slots in use whether a slice fits."""
    count = 1 << slots_of(kind.profiles)
    profiles = [option.profile for option in options(kind, need) if option.profile]
    fits = (
        any(_start(kind, profile, taken, is_changed=is_changed) is not None for profile in profiles)
        for taken in range(count)
    )
    return np.fromiter(fits, np.bool_, count)


class FleetSlices:
    """The parts of GPUs, and arrays of them: a row for each position, a column per appliance."""

    def __init__(
        self, kinds: Sequence[Sequence[GPUKind | None]], positions: int, rules: IsolationRules
    ) -> None:
        shape = (positions, len(kinds))
        numbers: dict[GPUKind, int] = {}
        self.rules = rules
        self._kind: NDArray[np.int16] = np.full(shape, -1, np.int16)
        for place, of_appliance in enumerate(kinds):
            for slot, kind in enumerate(of_appliance):
                if kind is not None:
                    self._kind[slot, place] = numbers.setdefault(kind, len(numbers))
        self.kinds = list(numbers)
        self.is_mig: Mask = self._of(lambda kind: kind.mode is PartitionMode.MIG)
        self._taken: NDArray[np.int64] = np.zeros(shape, np.int64)
        self._shares: NDArray[np.int64] = np.zeros(shape, np.int64)
        self._user: NDArray[np.int64] = np.full(shape, _NOBODY, np.int64)
        self._project: NDArray[np.int64] = np.full(shape, _NOBODY, np.int64)
        self._is_changed: Mask = np.zeros(shape, np.bool_)
        self._is_other: Mask = np.zeros(shape, np.bool_)
        self._parts: dict[tuple[int, int], list[Part]] = defaultdict(list)
        self._codes: dict[str | None, int] = {None: 0}

    def kind_at(self, place: int, slot: int) -> GPUKind | None:
        """Return the kind of a GPU; None for a whole one."""
        number = int(self._kind[slot, place])
        return None if number < 0 else self.kinds[number]

    def parts_at(self, place: int, slot: int) -> Sequence[Part]:
        """Return what jobs have of a GPU."""
        return self._parts.get((place, slot), ())

    def part_for(self, place: int, slot: int, request: SliceRequest) -> Part | None:
        """Return the part that a job would get of a GPU; None if it doesn't fit."""
        kind = self.kind_at(place, slot)
        if kind is None:
            return None
        return fitting_part(kind, self.parts_at(place, slot), request, self.rules)

    def changes_layout(self, place: int, slot: int) -> bool:
        """Return whether instances on a GPU are not those of its layout."""
        return bool(self._is_changed[slot, place])

    def put(self, place: int, slot: int, part: Part) -> None:
        """Give a part of a GPU to a job."""
        self._parts[place, slot].append(part)
        self._refresh(place, slot)

    def drop(self, place: int, slot: int, part: Part) -> None:
        """Take a part of a GPU back."""
        self._parts[place, slot].remove(part)
        self._refresh(place, slot)

    def states(self, places: np.ndarray) -> list[bytes]:
        """Return for some appliances what their GPUs' room depends on, as a key."""
        arrays = (self._taken, self._user, self._project)
        columns = zip(*(array.T[places] for array in arrays), strict=True)
        return [b"".join(column.tobytes() for column in of_place) for of_place in columns]

    def offering(self, need: SliceNeed) -> Mask:
        """Return the GPUs that have such slices, in use or not."""
        return self._of(lambda kind: bool(options(kind, need)))

    def milli(self, need: SliceNeed) -> int:
        """Return the smallest share of a GPU that suffices, in thousandths; 1000 if none does."""
        offers = (options(kind, need) for kind in self.kinds)
        return min((offer[0].milli for offer in offers if offer), default=WHOLE_GPU)

    def with_room(self, request: SliceRequest, *, is_isolated: bool = True) -> Mask:
        """Return the GPUs with room for a slice, unless whole jobs have them.

        Without `is_isolated`, jobs that must not share a GPU are no obstacle.
        """
        room: Mask = np.zeros(self._kind.shape, np.bool_)
        for number, kind in enumerate(self.kinds):
            offer = options(kind, request.need)
            if not offer:
                continue
            of_kind = self._kind == number
            if kind.mode is PartitionMode.MIG:
                for is_changed in (False, True):
                    table = _fit_table(kind, request.need, is_changed=is_changed)
                    room |= (
                        of_kind & (self._is_changed == is_changed) & table[self._taken % table.size]
                    )
            else:
                room |= of_kind & (self._shares + offer[0].shares <= kind.shares)
        room &= ~self._is_other
        return room & self._allowed(request) if is_isolated else room

    def _allowed(self, request: SliceRequest) -> Mask:
        """Return the GPUs that a job may share with those on them."""
        same_user = self._user == self._code(request.user_id)
        project = self._code(request.project_id)
        same_project = (self._project == project) & (request.project_id is not None)
        allowed: Mask = self._user == _NOBODY
        for number, kind in enumerate(self.kinds):
            of_kind = self._kind == number
            for is_same_user in (False, True):
                for is_same_project in (False, True):
                    if self.rules.may_share(
                        kind.mode, is_same_user=is_same_user, is_same_project=is_same_project
                    ):
                        allowed |= (
                            of_kind
                            & (same_user == is_same_user)
                            & (same_project == is_same_project)
                        )
        return allowed

    def _of(self, is_wanted: Callable[[GPUKind], bool]) -> Mask:
        wanted = np.array([*map(is_wanted, self.kinds), False], np.bool_)
        return wanted[self._kind]

    def _code(self, ident: str | None) -> int:
        return self._codes.setdefault(ident, len(self._codes))

    def _refresh(self, place: int, slot: int) -> None:
        """Set the arrays from the parts."""
        at, parts = (slot, place), self._parts[place, slot]
        kind = self.kind_at(place, slot)
        self._taken[at] = _taken(parts)
        self._shares[at] = sum(part.shares for part in parts)
        self._user[at] = _only({self._code(part.user_id) for part in parts})
        self._project[at] = _only({self._code(part.project_id) for part in parts})
        if kind is not None:
            places = {(part.profile, part.start) for part in parts}
            self._is_changed[at] = bool(kind.layout) and not places <= _places(kind.layout)
            self._is_other[at] = any(part.mode is not kind.mode for part in parts)


def _only(codes: set[int]) -> int:
    if not codes:
        return _NOBODY
    return codes.pop() if len(codes) == 1 else _SEVERAL
