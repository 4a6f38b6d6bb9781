"""Identity tags of batches: stamp the senders of points, and split points by sender."""

from collections.abc import Iterator, Sequence

from timeseries.points import Batch, Block
from timeseries.store import IDENTITY_TAGS

Identity = tuple[str, ...]
"""The values of `IDENTITY_TAGS`, in that order."""


def stamp(batch: Batch, identities: Sequence[Identity], sender_of: Sequence[int]) -> Batch:
    """Return a batch with the senders' identity as its first tags, replacing tags of those names.

    Args:
        batch: points of one or several senders.
        identities: the identity of each sender.
        sender_of: position in the batch to index of the sender.
    """
    return Batch(
        tuple(_stamped(block, identities, sender_of) for block in batch.blocks), is_stamped=True
    )


def _stamped(block: Block, identities: Sequence[Identity], sender_of: Sequence[int]) -> Block:
    own, tag_sets = _without_identity(block)
    senders = map(sender_of.__getitem__, block.positions)
    tag_set_of = block.tag_set_of
    if tag_set_of == range(len(tag_sets)):  # each point has its own tags
        sets = [
            (*identities[sender], *own_values)
            for sender, own_values in zip(senders, tag_sets, strict=True)
        ]
    else:
        pairs = list(zip(senders, tag_set_of, strict=True))
        index = {pair: at for at, pair in enumerate(dict.fromkeys(pairs))}
        sets = [(*identities[sender], *tag_sets[at]) for sender, at in index]
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


def _without_identity(block: Block) -> tuple[tuple[str, ...], Sequence[tuple[str, ...]]]:
    """Return a block's tags and tag sets without identity tags."""
    own_at = [at for at, name in enumerate(block.tags) if name not in IDENTITY_TAGS]
    if len(own_at) == len(block.tags):
        return block.tags, block.tag_sets
    own = tuple([block.tags[at] for at in own_at])
    return own, [tuple([tag_set[at] for at in own_at]) for tag_set in block.tag_sets]


def split_by_identity(batch: Batch) -> Iterator[tuple[dict[str, str], Batch]]:
    """Yield each identity of a batch with its points, at their original positions.

    A store stamps one identity per submission and drops identity tags of points. Scanned points
    have theirs among the tags, so they are submitted by identity.
    """
    blocks_of: dict[Identity, list[Block]] = {}
    for block in batch.blocks:
        for identity, part in _parts(block):
            blocks_of.setdefault(identity, []).append(part)
    for values, blocks in blocks_of.items():
        pairs = zip(IDENTITY_TAGS, values, strict=True)
        yield {tag: value for tag, value in pairs if value}, Batch(tuple(blocks))


def _parts(block: Block) -> Iterator[tuple[Identity, Block]]:
    at = {tag: index for index, tag in enumerate(block.tags)}
    identities = [
        tuple(tag_set[at[tag]] if tag in at else "" for tag in IDENTITY_TAGS)
        for tag_set in block.tag_sets
    ]
    if len(set(identities)) == 1:
        yield identities[0], block
        return
    rows: dict[Identity, list[int]] = {}
    for row, index in enumerate(block.tag_set_of):
        rows.setdefault(identities[index], []).append(row)
    for identity, part_rows in rows.items():
        yield identity, block.select(part_rows)
