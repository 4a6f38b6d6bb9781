"""Whose points these are, as tags: the identity of many senders put into one batch."""

from collections.abc import Sequence

from timeseries.batch import Batch, Block
from timeseries.store import IDENTITY_TAGS

Identity = tuple[str, ...]
"""The values of `IDENTITY_TAGS`, in that order."""


def stamp(batch: Batch, identities: Sequence[Identity], sender_of: Sequence[int]) -> Batch:
    """Return a batch with the senders' identity as its first tags, over tags of these names.

    Args:
        batch: points of one or several senders.
        identities: who sent them.
        sender_of: for each position of the batch the index of its sender.
    """
    return Batch(
        tuple(_stamped(block, identities, sender_of) for block in batch.blocks), is_stamped=True
    )


def _stamped(block: Block, identities: Sequence[Identity], sender_of: Sequence[int]) -> Block:
    own, tag_sets = _without_claims(block)
    senders = map(sender_of.__getitem__, block.positions)
    pairs = list(zip(senders, block.tag_set_of, strict=True))
    distinct = dict.fromkeys(pairs)
    sets = [(*identities[sender], *tag_sets[at]) for sender, at in distinct]
    tag_set_of: Sequence[int] = range(len(pairs))
    if len(distinct) < len(pairs):
        index = dict(zip(distinct, range(len(distinct)), strict=True))
        tag_set_of = list(map(index.__getitem__, pairs))
    return Block(
        block.measurement,
        (*IDENTITY_TAGS, *own),
        sets,
        tag_set_of,
        block.fields,
        block.kinds,
        block.values,
        block.times_ns,
        block.positions,
    )


def _without_claims(block: Block) -> tuple[tuple[str, ...], Sequence[tuple[str, ...]]]:
    """Return a block's tags and tag sets without those that say who sent it."""
    kept = [at for at, name in enumerate(block.tags) if name not in IDENTITY_TAGS]
    if len(kept) == len(block.tags):
        return block.tags, block.tag_sets
    own = tuple([block.tags[at] for at in kept])
    return own, [tuple([one[at] for at in kept]) for one in block.tag_sets]
