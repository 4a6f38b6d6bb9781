"""The samples of a measurement that a statement reads, with the tags that its user sees."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from timeseries.columns import SampleColumns
from timeseries.influxql.conditions import (
    Where,
    check_condition,
    fields_of,
    holding,
    holding_rows,
    matchers,
)
from timeseries.influxql.windows import Floats, Integers
from timeseries.promql.selection import Source
from timeseries.store import (
    APPLIANCE_TAG,
    TENANT_TAG,
    Aggregate,
    RangeQuery,
    SampleQuery,
    Series,
)

END_OF_TIME_NS = 4_102_444_800_000_000_000
Tags = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class FieldSamples:
    """The samples of a field: the tags of each series, and the series of each sample."""

    tags: Sequence[Tags]
    series: Integers
    times_ns: Integers
    values: Floats


@dataclass
class Measurement:
    """A measurement within the span and the condition of a statement.

    Attributes:
        source: the samples of the user's tenants.
        name: of the measurement.
        where: the condition.
    """

    source: Source
    name: str
    where: Where

    @property
    def start_ns(self) -> int:
        """The first instant of the span; that of 1970 where it is open."""
        return self.where.start_ns or 0

    @property
    def end_ns(self) -> int:
        """The instant after the span; far in the future where it is open."""
        return END_OF_TIME_NS if self.where.end_ns is None else self.where.end_ns

    @cached_property
    def fields(self) -> list[str]:
        """The fields with numbers, sorted."""
        names = sorted(self.source.numbers_of(self.name))
        check_condition(self.where.tags, set(names) - set(self.tags))
        return names

    @cached_property
    def tags(self) -> list[str]:
        """The visible tags, sorted."""
        return sorted(self.source.tags_of(self.name))

    def tag_values(self, tag: str) -> set[str]:
        """Return the values that a tag ever had."""
        self.source.check()
        texts = self.source.store.tag_values(self.name, tag, tenants=self.source.tenants)
        names = self.source.names if tag == APPLIANCE_TAG else {}
        return {names.get(text, text) for text in texts if text}

    def samples(self, field: str) -> FieldSamples:
        """Return the samples of a field that fulfill the condition."""
        samples = self._read(field)
        values = {
            name: samples.values if name == field else _at_rows(self._read(name), samples)
            for name in self._compared
        }
        is_wanted = holding_rows(self.where.tags, samples.tags, samples.series, values)
        return FieldSamples(
            samples.tags,
            samples.series[is_wanted],
            samples.times_ns[is_wanted],
            samples.values[is_wanted],
        )

    def _read(self, field: str) -> FieldSamples:
        """Return the samples of a field whose series may fulfill the condition."""
        self.source.check()
        conditions, _ = self._matchers
        query = SampleQuery(
            measurement=self.name,
            fields=(field,),
            start_ns=self.start_ns,
            end_ns=self.end_ns,
            tenants=self.source.tenants,
            matchers=tuple(conditions),
            max_samples=self.source.remaining,
        )
        parts = self.source.read(query) if self.start_ns < self.end_ns else []
        return self._joined(parts)

    def aggregates(
        self, field: str, aggregate: Aggregate, interval_ns: int, group_tags: Sequence[str]
    ) -> list[Series] | None:
        """Return an aggregate of a field as the store has it; None where it can't.

        A store's answers do not depend on how many samples there are, and long ranges are those of
        its roll-ups.
        """
        conditions, is_exact = self._matchers
        own = tuple(tag for tag in group_tags if tag in self.tags)
        names = self.source.names
        if not is_exact or (APPLIANCE_TAG in own and len(set(names.values())) < len(names)):
            return None
        self.source.check()
        query = RangeQuery(
            measurement=self.name,
            fields=(field,),
            start_ns=self.start_ns,
            end_ns=self.end_ns,
            aggregate=aggregate,
            step_ns=interval_ns,
            tenants=self.source.tenants,
            matchers=tuple(conditions),
            group_by=own,
        )
        series = self.source.store.query_range(query) if self.start_ns < self.end_ns else []
        return [replace(line, tags=self._shown(line.tags)) for line in series]

    def groups(self) -> list[Tags]:
        """Return the tags of the series that fulfill the condition and have samples in the span."""
        conditions, _ = self._matchers
        query = RangeQuery(
            measurement=self.name,
            fields=tuple(self.fields),
            start_ns=self.start_ns,
            end_ns=self.end_ns,
            aggregate=Aggregate.COUNT,
            tenants=self.source.tenants,
            matchers=tuple(conditions),
            group_by=tuple(self.tags),
        )
        self.source.check()
        series = self.source.store.query_range(query) if self.start_ns < self.end_ns else []
        tags = [self._shown(line.tags) for line in series]
        return [
            own for own, holds in zip(tags, holding(self.where.tags, tags), strict=True) if holds
        ]

    @cached_property
    def _matchers(self) -> tuple[list[tuple[str, str, str]], bool]:
        return matchers(self.where.tags, self.tags, self.source.names, self._compared)

    @cached_property
    def _compared(self) -> list[str]:
        """The fields that the condition compares with numbers."""
        return fields_of(self.where.tags, set(self.fields) - set(self.tags))

    def _shown(self, tags: Tags) -> Tags:
        """Return tags as the user sees them: appliances have names, and tenants only for all."""
        names = self.source.names
        return {
            tag: names.get(text, text) if tag == APPLIANCE_TAG else text
            for tag, text in tags.items()
            if text and (tag != TENANT_TAG or self.source.tenants is None)
        }

    def _joined(self, parts: Sequence[SampleColumns]) -> FieldSamples:
        tags = [self._shown(own) for part in parts for own in part.tags]
        lengths = np.concatenate([part.lengths for part in parts] or [np.zeros(0, dtype=np.int64)])
        series = np.repeat(np.arange(len(tags)), lengths)
        times_ns = np.concatenate(
            [part.times_ns for part in parts] or [np.zeros(0, dtype=np.int64)]
        )
        values = np.concatenate([part.values for part in parts] or [np.zeros(0)])
        return FieldSamples(tags, series, times_ns, values)


def _at_rows(samples: FieldSamples, rows: FieldSamples) -> Floats:
    """Return the values of another field at the series and times of some rows, NaN without any."""
    values = np.full(len(rows.times_ns), np.nan)
    places = {tuple(sorted(tags.items())): at for at, tags in enumerate(samples.tags)}
    order = np.lexsort((samples.times_ns, samples.series))
    times_ns, sorted_values = samples.times_ns[order], samples.values[order]
    bounds = np.searchsorted(samples.series[order], np.arange(len(samples.tags) + 1))
    for series, tags in enumerate(rows.tags):
        own = places.get(tuple(sorted(tags.items())))
        at = np.flatnonzero(rows.series == series)
        if own is None or not len(at):
            continue
        low, high = bounds[own], bounds[own + 1]
        place_of = low + np.searchsorted(times_ns[low:high], rows.times_ns[at])
        place_of = np.minimum(place_of, high - 1)
        is_there = times_ns[place_of] == rows.times_ns[at]
        values[at[is_there]] = sorted_values[place_of[is_there]]
    return values
