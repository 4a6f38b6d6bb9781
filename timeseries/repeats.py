"""Batches that have a series twice at one instant: there, the order of the points counts."""

from collections.abc import Iterable, Sequence

from timeseries.points import Batch, Block
from timeseries.store import IDENTITY_TAGS


def repeating_measurements(batch: Batch) -> set[str]:
    """Return the measurements of which a batch has a series twice at one instant."""
    blocks_of: dict[str, list[Block]] = {}
    for block in batch.blocks:
        if block.fields:
            blocks_of.setdefault(block.measurement, []).append(block)
    return {
        measurement
        for measurement, blocks in blocks_of.items()
        if any(_repeats(alike, is_stamped=batch.is_stamped) for alike in _by_tags(blocks))
    }


def _by_tags(blocks: Sequence[Block]) -> Iterable[Sequence[Block]]:
    if len(blocks) == 1:
        return (blocks,)
    blocks_of: dict[frozenset[str], list[Block]] = {}
    for block in blocks:
        blocks_of.setdefault(frozenset(block.tags), []).append(block)
    return blocks_of.values()


def _repeats(blocks: Sequence[Block], *, is_stamped: bool) -> bool:
    """Return whether a series of blocks with the same tags is twice at one instant."""
    count = sum(map(len, blocks))
    if count == 1:
        return False
    claimed = () if is_stamped else [tag for tag in IDENTITY_TAGS if tag in blocks[0].tags]
    if len(blocks) == 1 and not claimed:
        (block,) = blocks
        return len(set(zip(block.tag_set_of, block.times_ns, strict=False))) < count
    instants = {
        (series[at], time_ns)
        for block in blocks
        for series in [_series(block, claimed)]
        for at, time_ns in zip(block.tag_set_of, block.times_ns, strict=False)
    }
    return len(instants) < count


def _series(block: Block, claimed: Sequence[str]) -> Sequence[tuple[str, ...]]:
    """Return the values of each tag set in the order of the names, without claimed tags."""
    order = sorted(range(len(block.tags)), key=block.tags.__getitem__)
    order = [at for at in order if block.tags[at] not in claimed]
    if order == list(range(len(block.tags))):
        return block.tag_sets
    return [tuple([values[at] for at in order]) for values in block.tag_sets]
