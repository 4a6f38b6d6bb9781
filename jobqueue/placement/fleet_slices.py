"""Room for slices on the GPUs of a fleet while a plan grows, as arrays over all of them.

What is on a GPU is kept twice: as the parts themselves, and as arrays, so that one look finds room.
An answer for the whole fleet is computed again only where something has changed.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from jobqueue.partitions.isolation import IsolationRules
from jobqueue.placement.slices import (
    CACHED,
    GPUKind,
    Part,
    SliceNeed,
    SliceRequest,
    fitting_part,
    options,
    places_of,
    shares_taken,
    slots_taken,
    start_of,
)
from protocol.gpu_slices import WHOLE_GPU, PartitionMode

Mask = NDArray[np.bool_]
Positions = NDArray[np.int64]
_NOBODY, _SEVERAL = -1, -2
# Answers for a whole fleet, and changes until they are computed anew: bound the memory.
_MAX_ANSWERS = 200
_MAX_CHANGES = 100_000


@lru_cache(CACHED)
def _fits(kind: GPUKind, need: SliceNeed, taken: int, *, is_changed: bool) -> bool:
    """Return whether a MIG instance fits beside slots that are in use."""
    profiles = (option.profile for option in options(kind, need) if option.profile)
    return any(
        start_of(kind, profile, taken, is_changed=is_changed) is not None for profile in profiles
    )


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
        # Answers for all GPUs, each with how many changes it knows.
        self._answers: dict[Hashable, tuple[Mask, int]] = {}
        self._changed: list[int] = []

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
        room = self._current(request.need, lambda at: self._have_room(at, request.need))
        if not is_isolated:
            return room
        owner = (request.user_id, request.project_id)
        return room & self._current(owner, lambda at: self._are_allowed(at, *owner))

    def _current(self, key: Hashable, answer: Callable[[Positions], Mask]) -> Mask:
        """Return an answer for each GPU, computed again only for those that have changed."""
        if len(self._answers) >= _MAX_ANSWERS or len(self._changed) >= _MAX_CHANGES:
            self._answers.clear()
            self._changed.clear()
        if key in self._answers:
            answers, count = self._answers[key]
            positions = np.array(self._changed[count:], np.int64)
        else:
            answers, positions = (
                np.zeros(self._kind.size, np.bool_),
                np.flatnonzero(self._kind >= 0),
            )
        answers[positions] = answer(positions)
        self._answers[key] = answers, len(self._changed)
        return answers.reshape(self._kind.shape)

    def _have_room(self, positions: Positions, need: SliceNeed) -> Mask:
        room: Mask = np.zeros(positions.size, np.bool_)
        for at, kind in self._by_kind(positions):
            offer, of_kind = options(kind, need), positions[at]
            if offer and kind.mode is PartitionMode.MIG:
                states = 2 * self._taken.ravel()[of_kind] + self._is_changed.ravel()[of_kind]
                # A fleet has few states.
                distinct, state_of = np.unique(states, return_inverse=True)
                fits = [
                    _fits(kind, need, state // 2, is_changed=bool(state % 2))
                    for state in distinct.tolist()
                ]
                room[at] = np.array(fits, np.bool_)[state_of]
            elif offer:
                room[at] = self._shares.ravel()[of_kind] + offer[0].shares <= kind.shares
        is_other: Mask = self._is_other.ravel()[positions]
        return room & ~is_other

    def _are_allowed(
        self, positions: Positions, user_id: str | None, project_id: str | None
    ) -> Mask:
        """Return which GPUs a job may share with those on them."""
        users, projects = self._user.ravel()[positions], self._project.ravel()[positions]
        # Two users who were deleted are not the same one.
        same_user = (users == self._code(user_id)) & (user_id is not None)
        same_project = (projects == self._code(project_id)) & (project_id is not None)
        case = 2 * same_user + same_project
        allowed: Mask = users == _NOBODY
        for at, kind in self._by_kind(positions):
            may_share = [
                self.rules.may_share(
                    kind.mode, is_same_user=is_same_user, is_same_project=is_same_project
                )
                for is_same_user in (False, True)
                for is_same_project in (False, True)
            ]
            allowed[at] |= np.array(may_share, np.bool_)[case[at]]
        return allowed

    def _by_kind(self, positions: Positions) -> Iterator[tuple[Positions, GPUKind]]:
        """Yield which of some positions are of each kind."""
        numbers = self._kind.ravel()[positions]
        for number in np.unique(numbers).tolist():
            yield np.flatnonzero(numbers == number), self.kinds[number]

    def _of(self, is_wanted: Callable[[GPUKind], bool]) -> Mask:
        wanted = np.array([*map(is_wanted, self.kinds), False], np.bool_)
        return wanted[self._kind]

    def _code(self, ident: str | None) -> int:
        return self._codes.setdefault(ident, len(self._codes))

    def _refresh(self, place: int, slot: int) -> None:
        """Set the arrays from the parts."""
        at, parts = (slot, place), self._parts[place, slot]
        self._changed.append(slot * self._kind.shape[1] + place)
        kind = self.kind_at(place, slot)
        self._taken[at] = slots_taken(parts)
        self._user[at] = _only({self._code(part.user_id) for part in parts})
        self._project[at] = _only({self._code(part.project_id) for part in parts})
        if kind is not None:
            self._shares[at] = shares_taken(kind, parts)
            places = {(part.profile, part.start) for part in parts}
            self._is_changed[at] = bool(kind.layout) and not places <= places_of(kind.layout)
            self._is_other[at] = any(part.mode is not kind.mode for part in parts)


def _only(codes: set[int]) -> int:
    if not codes:
        return _NOBODY
    return codes.pop() if len(codes) == 1 else _SEVERAL
