"""Points and batches: the data that plugins produce and stores write.

A *sample* is one reading (measurement, tags, field, value, time); a *point* is all samples that
share measurement, tags and time: one line of line protocol.

A *block* has points of one measurement with the same tag names, fields and types, so that a store
can process it by column. A *position* is the index of a point in its batch; errors refer to it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

FieldValue = float | int | bool | str


@dataclass(frozen=True, slots=True)
class Point:
    """All readings of one measurement, tag set and instant.

    Attributes:
        measurement: the name, such as `gpu`.
        tags: identify the series, such as `{"gpu": "0"}`; values are never empty.
        fields: at least one reading; the unit is the field's suffix (`power_watts`).
        time_ns: nanoseconds since the epoch.
    """

    measurement: str
    tags: Mapping[str, str]
    fields: Mapping[str, FieldValue]
    time_ns: int


@dataclass(frozen=True, slots=True)
class Block:
    """Points of one shape, in columns of equal length.

    Attributes:
        tags: the tag names.
        tag_sets: the distinct combinations of tag values, each in the order of `tags`.
        tag_set_of: the index of each point's values in `tag_sets`.
        fields: the field names; at least one.
        kinds: the type of each field: float, int, bool or str.
        values: a column of values for each field.
        times_ns: the time of each point, in nanoseconds since the epoch.
        positions: the position of each point in its batch.
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
        """Yield the points in the order of the columns."""
        tag_maps = [dict(zip(self.tags, tag_set, strict=True)) for tag_set in self.tag_sets]
        for row, values in enumerate(zip(*self.values, strict=True)):
            fields = dict(zip(self.fields, values, strict=True))
            yield Point(
                self.measurement, tag_maps[self.tag_set_of[row]], fields, self.times_ns[row]
            )

    def without(self, positions: Collection[int]) -> "Block":
        """Return the block without some points; positions do not change."""
        rows = [row for row, at in enumerate(self.positions) if at not in positions]
        if len(rows) == len(self):
            return self
        return self.select(rows)

    def select(self, rows: Sequence[int]) -> "Block":
        """Return some rows of the block; positions do not change."""
        return replace(
            self,
            tag_set_of=[self.tag_set_of[row] for row in rows],
            values=tuple([column[row] for row in rows] for column in self.values),
            times_ns=[self.times_ns[row] for row in rows],
            positions=[self.positions[row] for row in rows],
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """Points of one request, by shape; several blocks may have the same shape.

    Attributes:
        is_stamped: whether the identity tags are verified; otherwise the store ignores them.
    """

    blocks: tuple[Block, ...]
    is_stamped: bool = False

    @classmethod
    def of(cls, points: Iterable[Point]) -> "Batch":
        """Return a batch of points; their positions are the order in the argument."""
        return cls.from_positioned(enumerate(points))

    @classmethod
    def from_positioned(cls, positioned: Iterable[tuple[int, Point]]) -> "Batch":
        """Return a batch of points with their positions."""
        shapes: dict[tuple[object, ...], list[tuple[int, Point]]] = {}
        for position, point in positioned:
            shapes.setdefault(_shape(point), []).append((position, point))
        return cls(tuple(_block(members) for members in shapes.values()))

    def __len__(self) -> int:
        return sum(map(len, self.blocks))

    def points(self) -> list[Point]:
        """Return the points by position."""
        positioned = [
            pair
            for block in self.blocks
            for pair in zip(block.positions, block.points(), strict=True)
        ]
        return [point for _, point in sorted(positioned, key=lambda pair: pair[0])]

    def in_order(self, measurements: Collection[str]) -> "Batch":
        """Return the batch with the blocks of some measurements cut so that positions ascend."""
        if not measurements:
            return self
        cut, others = list[Block](), list[Block]()
        for block in self.blocks:
            is_cut = block.fields and block.measurement in measurements
            (cut if is_cut else others).append(block)
        positioned = [
            pair for block in cut for pair in zip(block.positions, block.points(), strict=True)
        ]
        positioned.sort(key=lambda pair: pair[0])
        runs = groupby(positioned, key=lambda pair: _shape(pair[1]))
        return Batch((*others, *(_block(list(run)) for _, run in runs)), self.is_stamped)

    def without(self, positions: Collection[int]) -> "Batch":
        """Return the batch without some points; positions do not change."""
        if not positions:
            return self
        blocks = (block.without(positions) for block in self.blocks)
        return Batch(tuple(block for block in blocks if len(block)), self.is_stamped)


def _shape(point: Point) -> tuple[object, ...]:
    kinds = tuple(type(value) for value in point.fields.values())
    return point.measurement, tuple(point.tags), tuple(point.fields), kinds


def _block(members: Sequence[tuple[int, Point]]) -> Block:
    first = members[0][1]
    tag_sets: dict[tuple[str, ...], int] = {}
    tag_set_of = [
        tag_sets.setdefault(tuple(point.tags.values()), len(tag_sets)) for _, point in members
    ]
    return Block(
        first.measurement,
        tuple(first.tags),
        list(tag_sets),
        tag_set_of,
        tuple(first.fields),
        tuple(type(value) for value in first.fields.values()),
        tuple(zip(*[point.fields.values() for _, point in members], strict=True)),
        [point.time_ns for _, point in members],
        [position for position, _ in members],
    )
