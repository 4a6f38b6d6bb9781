"""Batches taken apart by whom their points are of, as a store takes them.

A store stamps the identity that it is given and drops what points claim themselves. Points that
were scanned carry theirs among their tags, so each appliance's are handed over by themselves.
"""

from collections.abc import Iterator

from timeseries.batch import Batch, Block
from timeseries.store import IDENTITY_TAGS

_Identity = tuple[str, ...]


def by_identity(batch: Batch) -> Iterator[tuple[dict[str, str], Batch]]:
    """Yield each identity of a batch with its points; they keep their positions."""
    found: dict[_Identity, list[Block]] = {}
    for block in batch.blocks:
        for identity, part in _parts(block):
            found.setdefault(identity, []).append(part)
    for values, blocks in found.items():
        pairs = zip(IDENTITY_TAGS, values, strict=True)
        yield {tag: value for tag, value in pairs if value}, Batch(tuple(blocks))


def _parts(block: Block) -> Iterator[tuple[_Identity, Block]]:
    at = {tag: index for index, tag in enumerate(block.tags)}
    identities = [
        tuple(one[at[tag]] if tag in at else "" for tag in IDENTITY_TAGS) for one in block.tag_sets
    ]
    if len(set(identities)) == 1:
        yield identities[0], block
        return
    rows: dict[_Identity, list[int]] = {}
    for row, index in enumerate(block.tag_set_of):
        rows.setdefault(identities[index], []).append(row)
    for identity, some in rows.items():
        yield identity, _of_rows(block, some)


def _of_rows(block: Block, rows: list[int]) -> Block:
    new_index: dict[int, int] = {}
    tag_set_of = [
        new_index.setdefault(index, len(new_index))
        for index in map(block.tag_set_of.__getitem__, rows)
    ]
    return Block(
        block.measurement,
        block.tags,
        [block.tag_sets[index] for index in new_index],
        tag_set_of,
        block.fields,
        block.kinds,
        tuple(list(map(column.__getitem__, rows)) for column in block.values),
        list(map(block.times_ns.__getitem__, rows)),
        list(map(block.positions.__getitem__, rows)),
    )
