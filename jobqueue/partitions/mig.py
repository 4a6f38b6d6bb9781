"""The geometry of MIG: which instances fit beside each other on the slots of a GPU.

A GPU's slots in use are a bit mask. All facts come from the profiles that its driver reports.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

from protocol.gpu_slices import MAX_SLOTS, MIGPlacement, MIGProfile

Profiles = tuple[MIGProfile, ...]
# Layouts that are tried until one fits; real GPUs need a few dozen.
_MAX_TRIES = 20_000


def slots_of(profiles: Sequence[MIGProfile]) -> int:
    """Return how many slots a GPU has."""
    return max((max(p.starts) + p.slots for p in profiles if p.starts), default=0)


def valid_profiles(profiles: Sequence[MIGProfile]) -> Profiles:
    """Return the profiles that make sense: a broken agent may report anything."""
    by_name = {
        profile.name: profile
        for profile in profiles
        if profile.slots > 0
        and profile.memory_bytes > 0
        and profile.multiprocessors > 0
        and profile.starts
        and max(profile.starts) + profile.slots <= MAX_SLOTS
    }
    return tuple(by_name.values())


def bits(start: int, slots: int) -> int:
    """Return the mask of an instance."""
    return ((1 << slots) - 1) << start


def share_milli(profile: MIGProfile, profiles: Sequence[MIGProfile]) -> int:
    """Return the thousandths of a GPU that an instance of a profile takes, by its slots."""
    return max(1, profile.slots * 1000 // max(1, slots_of(profiles)))


def place_layout(
    profiles: Sequence[MIGProfile], layout: Sequence[str]
) -> list[MIGPlacement] | None:
    """Return where the instances of a layout go, the largest first; None if they don't fit."""
    by_name = {profile.name: profile for profile in profiles}
    if any(name not in by_name for name in layout):
        return None
    wanted = sorted((by_name[name] for name in layout), key=lambda p: (-p.slots, p.name))
    tries = iter(range(_MAX_TRIES))
    starts = _starts(wanted, 0, tries)
    if starts is None:
        return None
    return [MIGPlacement(profile=p.name, start=at) for p, at in zip(wanted, starts, strict=True)]


def _starts(wanted: Sequence[MIGProfile], taken: int, tries: Iterator[int]) -> list[int] | None:
    if not wanted:
        return []
    first = wanted[0]
    for start in first.starts:
        if next(tries, None) is None:
            return None
        if taken & bits(start, first.slots):
            continue
        rest = _starts(wanted[1:], taken | bits(start, first.slots), tries)
        if rest is not None:
            return [start, *rest]
    return None


@lru_cache(10_000)
def best_start(profiles: Profiles, profile: MIGProfile, taken: int) -> int | None:
    """Return where an instance goes so that the others lose the fewest places; None if nowhere."""
    free = [at for at in profile.starts if not taken & bits(at, profile.slots)]
    return max(
        free,
        key=lambda at: (_places_left(profiles, taken | bits(at, profile.slots)), -at),
        default=None,
    )


def _places_left(profiles: Profiles, taken: int) -> int:
    """Return how many places are left for instances, each as its slots."""
    return sum(
        profile.slots
        for profile in profiles
        for start in profile.starts
        if not taken & bits(start, profile.slots)
    )
