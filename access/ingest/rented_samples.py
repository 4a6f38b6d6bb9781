"""Samples of rented jobs: their customer gets a copy, and their provider what is about hardware.

An appliance sends them as its own, with the tag `job`. The copy has the customer as its tenant, the
contract as its appliance, and only declared tags and fields: names of the provider's are in none.
What is not about hardware, such as metrics that the job reports, is not stored for the provider,
and what is not declared, such as metrics that an agent scrapes of the job, for nobody.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from core.clock import to_ns
from timeseries.declared import DECLARED
from timeseries.points import Batch, Block

JOB_TAG = "job"
# Agents read a moment before and after an attempt, and their clocks differ.
SLACK = timedelta(minutes=5)
_OF_JOBS = {name: declared for name, declared in DECLARED.items() if JOB_TAG in declared.tags}
_HARDWARE = frozenset(name for name, declared in _OF_JOBS.items() if "gpu" in declared.tags)

Owner = tuple[str, str]
"""The tenant of a copy, and its contract."""


@dataclass(frozen=True, slots=True)
class RentedUse:
    """A job of a customer on an appliance; `until_ns` is None while it runs."""

    owner: Owner
    since_ns: int
    until_ns: int | None

    @classmethod
    def of(cls, owner: Owner, since: datetime, until: datetime | None) -> "RentedUse":
        """Return a use from when it was assigned until it ended, with some slack."""
        end_ns = None if until is None else to_ns(until + SLACK)
        return cls(owner, to_ns(since - SLACK), end_ns)

    def __or__(self, other: "RentedUse") -> "RentedUse":
        """Return the use from the first attempt to the last; that has the contract that counts."""
        ends = (self.until_ns, other.until_ns)
        until_ns = None if None in ends else max(end for end in ends if end is not None)
        return RentedUse(other.owner, min(self.since_ns, other.since_ns), until_ns)

    def includes(self, at_ns: int) -> bool:
        """Return whether a sample is of its time."""
        return self.since_ns <= at_ns and (self.until_ns is None or at_ns <= self.until_ns)


@dataclass(slots=True)
class Routed:
    """Where the points of a batch go: what stays with the sender, and the copies by owner."""

    own: Batch
    copies: Mapping[Owner, Batch]


def rejected(block: Block, uses: Mapping[int, RentedUse]) -> Iterable[int]:
    """Yield the positions of points that are not of the time of their job.

    Args:
        block: points with the tag `job`.
        uses: the use of each of its tag sets that are of rented jobs.
    """
    for position, number, at_ns in zip(
        block.positions, block.tag_set_of, block.times_ns, strict=True
    ):
        use = uses.get(number)
        if use is not None and not use.includes(at_ns):
            yield position


def route(batch: Batch, uses_of: Sequence[Mapping[int, RentedUse]]) -> Routed:
    """Split a batch; `uses_of` has for each block the uses of its tag sets."""
    own: list[Block] = []
    copies: dict[Owner, list[Block]] = defaultdict(list)
    for block, uses in zip(batch.blocks, uses_of, strict=True):
        if not uses:
            own.append(block)
            continue
        for owner in {use.owner for use in uses.values()}:
            numbers = {number for number, use in uses.items() if use.owner == owner}
            if (copy := _copy(block, numbers)) is not None:
                copies[owner].append(copy)
        if block.measurement in _HARDWARE:
            own.append(block)
        elif len(rest := _rows(block, set(range(len(block.tag_sets))) - uses.keys())):
            own.append(rest)
    return Routed(
        replace(batch, blocks=tuple(own)),
        {owner: Batch(tuple(blocks)) for owner, blocks in copies.items()},
    )


def _copy(block: Block, numbers: Collection[int]) -> Block | None:
    """Return the rows of some tag sets, with declared tags and fields; None if there are none."""
    declared = _OF_JOBS.get(block.measurement)
    if declared is None:
        return None
    fields_at = [at for at, name in enumerate(block.fields) if name in declared.fields]
    rows = _rows(block, numbers)
    if not fields_at or not len(rows):
        return None
    tags_at = [at for at, name in enumerate(block.tags) if name in declared.tags]
    return replace(
        rows,
        tags=tuple(block.tags[at] for at in tags_at),
        tag_sets=[tuple(tag_set[at] for at in tags_at) for tag_set in block.tag_sets],
        fields=tuple(block.fields[at] for at in fields_at),
        kinds=tuple(block.kinds[at] for at in fields_at),
        values=tuple(rows.values[at] for at in fields_at),
    )


def _rows(block: Block, numbers: Collection[int]) -> Block:
    return block.select([row for row, at in enumerate(block.tag_set_of) if at in numbers])
