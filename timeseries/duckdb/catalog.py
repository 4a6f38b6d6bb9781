"""The catalog of a DuckDB store: measurements, fields, tags and tag values, by tenant.

The manifest lists the names that a segment has values of. Only names that no segment has are
searched in the tables of samples, each up to its first value. Values of tags are read from the
smallest file of each segment.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import duckdb

from timeseries.duckdb.files.manifest import Manifest
from timeseries.duckdb.files.segments import Segment
from timeseries.duckdb.hot.writer import DuckDBWriter
from timeseries.duckdb.query.relation import Relation, Statement, files_sql
from timeseries.duckdb.query.sql import select, where_visible
from timeseries.duckdb.schema import Key, Table, field_column, quoted, table_name, tag_column
from timeseries.lineprotocol.grammar import MAX_INT64
from timeseries.store import IDENTITY_TAGS, Resolution, StoreUnavailableError, TagMatcher

Tenants = tuple[str, ...] | None
_Result = TypeVar("_Result")
# What a statement ends with that reads an empty table which was dropped meanwhile, or made again.
_MISSING = (duckdb.CatalogException, duckdb.BinderException)
Fetch = Callable[[str, Sequence[object]], list[tuple[Any, ...]]]


class Catalog:
    """The part of a `Store` that lists names; a store inherits it and sets the attributes.

    Attributes:
        writer: has the schema.
        manifest: has the segments.
        fetch: runs a read.
    """

    writer: DuckDBWriter
    manifest: Manifest
    fetch: Fetch

    def measurements(self, *, tenants: Tenants) -> list[str]:
        """Return the names of the measurements with samples of these tenants, sorted."""
        names = self.writer.measurements(tenants).union(self.manifest.measurements)
        # What is staged need not be moved into tables to know that it is there.
        staged = self.writer.staged_measurements(tenants)
        return [name for name in sorted(names) if name in staged or self._has_any(name, tenants)]

    def fields(self, measurement: str, *, tenants: Tenants) -> dict[str, str]:
        """Return name to type of the fields with values of these tenants, sorted."""
        _, staged = self.writer.staged_names(measurement, tenants)

        def read(relation: Relation) -> dict[str, str]:
            with_values = {name for segment in relation.visible() for name in segment.fields}
            with_values |= staged.keys()
            for key, table in relation.tables.items():
                others = {
                    name: quoted(field_column(name)) for name in table.fields.keys() - with_values
                }
                with_values |= self._present(relation, key, others)
            fields = sorted({**staged, **relation.table.fields}.items())
            return {name: str(kind) for name, kind in fields if name in with_values}

        return self._read(measurement, tenants, read, are_own_moved=False)

    def tags(self, measurement: str, *, tenants: Tenants) -> list[str]:
        """Return the names of the tags of these tenants' samples, identity tags first."""
        staged, _ = self.writer.staged_names(measurement, tenants)

        def read(relation: Relation) -> set[str] | None:
            tags = staged.union(*(segment.table.tags for segment in relation.visible()))
            has_any = bool(tags)
            for key, table in relation.tables.items():
                others = table.tags.difference(tags, IDENTITY_TAGS)
                columns = {tag: quoted(tag_column(tag)) for tag in others}
                if not has_any:
                    columns |= {"": "1"}
                tags |= (present := self._present(relation, key, columns))
                has_any = has_any or bool(present)
            return tags - {""} if has_any else None

        names = self._read(measurement, tenants, read, are_own_moved=False)
        if names is None:
            return []
        return [*IDENTITY_TAGS, *sorted(names.difference(IDENTITY_TAGS))]

    def tag_values(self, measurement: str, tag: str, *, tenants: Tenants) -> list[str]:
        """Return the distinct values of a tag, sorted."""

        def read(relation: Relation) -> set[str | None]:
            return {value for (value,) in self.fetch(*_tag_values_sql(relation, tag))}

        values = self._read(measurement, tenants, read)
        return sorted(value for value in values if value is not None)

    def _has_any(self, measurement: str, tenants: Tenants) -> bool:
        return self._read(
            measurement,
            tenants,
            lambda relation: (
                bool(relation.visible())
                or any(self._present(relation, key, {"": "1"}) for key in relation.tables)
            ),
        )

    def _read(
        self,
        measurement: str,
        tenants: Tenants,
        work: Callable[[Relation], _Result],
        *,
        filters: Mapping[str, Sequence[str]] = MappingProxyType({}),
        matchers: Sequence[TagMatcher] = (),
        before_ns: int = MAX_INT64 + 1,
        are_own_moved: bool = True,
    ) -> _Result:
        """Return what `work` reads from a measurement, of samples before a time at least.

        Unless `are_own_moved`, it does without what is staged of tenants' own tables.
        """

        def move() -> tuple[dict[Key, Table], list[Table]]:
            return self.writer.tables(
                measurement, tenants, before_ns=before_ns, are_own_moved=are_own_moved
            )

        def read(segments: Sequence[Segment]) -> _Result:
            tables, later = move()
            relation = Relation(
                tables=tables,
                later=later,
                segments=segments,
                files=self.manifest.files,
                tenants=tenants,
                filters=filters,
                matchers=matchers,
                overwritten=self.writer.overwrites.of(measurement, tenants),
            )
            try:
                result = work(relation)
            except StoreUnavailableError as error:
                is_drop = isinstance(error.__cause__, _MISSING) and self.writer.dropped_any(tables)
                if not is_drop:
                    raise
                return read(segments)
            if self.writer.overwrites.of(measurement, tenants) == relation.overwritten:
                return result
            return read(segments)  # samples were overwritten meanwhile

        return self.manifest.read(measurement, read, prepare=move)

    def _present(self, relation: Relation, key: Key, columns: Mapping[str, str]) -> set[str]:
        """Return the names whose columns have any value in a table of samples."""
        condition = where_visible(relation.tables[key], tenants=relation.tenants)
        if condition.matches_nothing or not columns:
            return set()
        source = quoted(table_name(key))
        reads = []
        for at, column in enumerate(columns.values()):
            where = " AND ".join([*condition.clauses, f"{column} IS NOT NULL"])
            reads.append("(" + select([str(at)], f"{source} WHERE {where} LIMIT 1") + ")")
        rows = self.fetch(" UNION ALL ".join(reads), [*condition.values] * len(reads))
        names = list(columns)
        return {names[at] for (at,) in rows}


def _tag_values_sql(relation: Relation, tag: str) -> Statement:
    """Return the statement of a tag's values: in the tables, and each segment's smallest file."""
    smallest: dict[Resolution, list[Segment]] = {}
    for segment in relation.visible():
        if tag in segment.table.tags:
            smallest.setdefault(min(segment.sizes, key=segment.sizes.__getitem__), []).append(
                segment
            )
    sources: list[Statement] = []
    for key, table in relation.tables.items():
        condition = where_visible(table, tenants=relation.tenants)
        if tag in table.tags and not condition.matches_nothing:
            sources.append((f"{quoted(table_name(key))} {condition.sql}", condition.values))
    sources += [files_sql(relation.files, segments, size) for size, segments in smallest.items()]
    column = quoted(tag_column(tag))
    text = " UNION ".join(select([f"DISTINCT {column}"], source) for source, _ in sources)
    return text, [value for _, values in sources for value in values]
