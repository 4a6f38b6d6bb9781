"""Batches: points in columns, as they pass from the parser to a store.

A *block* holds points of one measurement that have the same tags' names, the same fields and the
same types, so that a store can take it column by column. A *position* says where a point stands in
its batch, counted from 0: faults are told by it.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from timeseries.points import FieldValue, Point


@dataclass(frozen=True, slots=True)
class Block:
    """Points of one shape, in columns of one length.

    Attributes:
        measurement: what is measured.
        tags: the tags' names.
        tag_sets: the distinct values of the tags together, each in the order of `tags`.
        tag_set_of: for each point the index of its values in `tag_sets`.
        fields: the fields' names; at least one.
        kinds: for each field the one type of its values: float, int, bool or str.
        values: for each field a column with a value for each point.
        times_ns: for each point its nanoseconds since the epoch.
        positions: for each point where it stands in its batch.
    """

    measurement: str
    tags: tuple[str, ...]
    tag_sets: Sequence[tuple[str, ...]]
    tag_set_of: Sequence[int]
    fields: tuple[str, ...]
    kinds: tuple[type, ...]
    values: tuple[Sequence[FieldValue], ...]
    times_ns: Sequence[int]
    positions: Sequence[int]

    def __len__(self) -> int:
        return len(self.times_ns)

    def points(self) -> Iterator[Point]:
        """Yield the points one by one, in the order of the columns."""
        tag_maps = [dict(zip(self.tags, one, strict=True)) for one in self.tag_sets]
        for row, values in enumerate(zip(*self.values, strict=True)):
            fields = dict(zip(self.fields, values, strict=True))
            yield Point(
                self.measurement, tag_maps[self.tag_set_of[row]], fields, self.times_ns[row]
            )

    def without(self, positions: Collection[int]) -> "Block":
        """Return the block without some points; the others keep their positions."""
        kept = [row for row, at in enumerate(self.positions) if at not in positions]
        if len(kept) == len(self):
            return self
        return Block(
            self.measurement,
            self.tags,
            self.tag_sets,
            [self.tag_set_of[row] for row in kept],
            self.fields,
            self.kinds,
            tuple([column[row] for row in kept] for column in self.values),
            [self.times_ns[row] for row in kept],
            [self.positions[row] for row in kept],
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """Points on their way together, by shape; several blocks may have one shape.

    Attributes:
        blocks: the points.
        is_stamped: whether the identity tags among theirs are proved; else they are a claim of the
            sender's, and not kept.
    """

    blocks: tuple[Block, ...]
    is_stamped: bool = False

    @classmethod
    def of(cls, points: Iterable[Point]) -> "Batch":
        """Return a batch of points; their positions are those in the argument."""
        return cls.of_placed(enumerate(points))

    @classmethod
    def of_placed(cls, placed: Iterable[tuple[int, Point]]) -> "Batch":
        """Return a batch of points that each come with their position."""
        shapes: dict[tuple[object, ...], list[tuple[int, Point]]] = {}
        for position, point in placed:
            kinds = tuple(type(value) for value in point.fields.values())
            shape = (point.measurement, tuple(point.tags), tuple(point.fields), kinds)
            shapes.setdefault(shape, []).append((position, point))
        return cls(tuple(_block(some) for some in shapes.values()))

    def __len__(self) -> int:
        return sum(map(len, self.blocks))

    def points(self) -> list[Point]:
        """Return the points in the order of their positions."""
        placed = [
            pair
            for block in self.blocks
            for pair in zip(block.positions, block.points(), strict=True)
        ]
        return [point for _, point in sorted(placed, key=lambda pair: pair[0])]

    def without(self, positions: Collection[int]) -> "Batch":
        """Return the batch without some points; the others keep their positions."""
        if not positions:
            return self
        kept = (block.without(positions) for block in self.blocks)
        return Batch(tuple(block for block in kept if len(block)), self.is_stamped)


def _block(some: Sequence[tuple[int, Point]]) -> Block:
    first = some[0][1]
    tag_sets: dict[tuple[str, ...], int] = {}
    tag_set_of = [
        tag_sets.setdefault(tuple(point.tags.values()), len(tag_sets)) for _, point in some
    ]
    return Block(
        first.measurement,
        tuple(first.tags),
        list(tag_sets),
        tag_set_of,
        tuple(first.fields),
        tuple(type(value) for value in first.fields.values()),
        tuple(zip(*[point.fields.values() for _, point in some], strict=True)),
        [point.time_ns for _, point in some],
        [position for position, _ in some],
    )
