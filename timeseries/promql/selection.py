"""The samples that selectors read: names become measurements and fields, and labels become tags.

A metric may be in several measurements, and a label may be several tags, as their names in PromQL
have fewer characters. What tenants see has no label `tenant`.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from core.errors import UnavailableError
from timeseries.columns import SampleColumns
from timeseries.metric_catalog import NUMBERS
from timeseries.prometheus_names import (
    fields_of_metric,
    label_name,
    likely_measurements,
    metric_name,
)
from timeseries.promql.patterns import full_matches
from timeseries.promql.values import NAME_LABEL, Labels, Samples
from timeseries.sample_query import MAX_SECONDS
from timeseries.store import (
    APPLIANCE_TAG,
    TENANT_TAG,
    SampleQuery,
    Store,
    TagMatcher,
    TooManySamplesError,
)

MAX_SAMPLES = 5_000_000
_NS_PER_MS = 1_000_000

Matchers = tuple[TagMatcher, ...]


class QueryTimeoutError(UnavailableError):
    """A query took too long."""

    default_code = "promql_timeout"


@dataclass
class Source:
    """The samples of some tenants, within the bounds of one query.

    Attributes:
        store: the samples.
        tenants: those that are visible; None for all.
        names: of appliances by ID: the label `appliance` has them in place of IDs.
        max_seconds: how long the query may take.
        seconds: a clock that only counts.
        max_samples: how many samples the query may read.
    """

    store: Store
    tenants: tuple[str, ...] | None
    names: Mapping[str, str] = field(default_factory=dict)
    max_seconds: float = MAX_SECONDS
    seconds: Callable[[], float] = time.monotonic
    max_samples: int = MAX_SAMPLES
    _read: dict[object, Samples] = field(default_factory=dict)
    _fields: dict[str, Mapping[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin to count."""
        self._deadline = self.seconds() + self.max_seconds
        self.remaining = self.max_samples

    def check(self) -> None:
        """Raise `QueryTimeoutError` if the query takes too long."""
        if self.seconds() > self._deadline:
            raise QueryTimeoutError(
                f"The query takes longer than {self.max_seconds:g} s. Use a shorter range, a "
                "larger step, or more matchers."
            )

    def samples(self, matchers: Matchers, *, start_ms: int, end_ms: int) -> Samples:
        """Return the samples of the series that match, in a span with both of its ends.

        Raises:
            TooManySamplesError: the query reads too many.
            QueryTimeoutError: it takes too long.
        """
        key = (matchers, start_ms, end_ms)
        if key not in self._read:
            columns = list[tuple[str, SampleColumns]]()
            for measurement, fields in self.metrics(matchers).items():
                self.check()
                query = self._query(measurement, fields, matchers, (start_ms, end_ms))
                columns += [(measurement, part) for part in self.read(query)] if query else []
            self._read[key] = self._assembled(columns, matchers)
        return self._read[key]

    def read(self, query: SampleQuery) -> list[SampleColumns]:
        """Return the samples of a query, which count for how many may be read.

        Raises:
            TooManySamplesError: they are too many.
        """
        try:
            parts = self.store.samples(query)
        except TooManySamplesError:
            raise TooManySamplesError(
                f"The query reads more than {self.max_samples:,} samples. Use a shorter range, or "
                "matchers that select fewer series."
            ) from None
        self.remaining -= sum(len(part.values) for part in parts)
        return parts

    def metrics(self, matchers: Matchers) -> dict[str, tuple[str, ...]]:
        """Return the fields with numbers by measurement whose names match."""
        conditions = [(operator, text) for label, operator, text in matchers if label == NAME_LABEL]
        name = next((text for operator, text in conditions if operator == "="), None)
        fields: dict[str, tuple[str, ...]] = {}
        for measurement, own in self._all_fields() if name is None else self._named_fields(name):
            self.check()
            text = metric_name(measurement, own)
            if all(_holds(operator, value, text) for operator, value in conditions):
                fields[measurement] = (*fields.get(measurement, ()), own)
        return fields

    def _all_fields(self) -> Iterator[tuple[str, str]]:
        for measurement in self.measurements:
            yield from ((measurement, name) for name in self.numbers_of(measurement))

    def _named_fields(self, name: str) -> list[tuple[str, str]]:
        # To list all measurements takes longer than most queries.
        for measurements in (likely_measurements(name), None):
            listed = self.measurements if measurements is None else measurements
            pairs = list(fields_of_metric(name, listed, self.numbers_of))
            if pairs:
                return pairs
        return []

    def tags_of(self, measurement: str) -> list[str]:
        """Return the visible tags of a measurement."""
        tags = self.store.tags(measurement, tenants=self.tenants)
        return [tag for tag in tags if tag != TENANT_TAG or self.tenants is None]

    @cached_property
    def measurements(self) -> list[str]:
        """The measurements with samples."""
        return self.store.measurements(tenants=self.tenants)

    def numbers_of(self, measurement: str) -> Mapping[str, str]:
        """Return the fields with numbers of a measurement, with their types."""
        if measurement not in self._fields:
            fields = self.store.fields(measurement, tenants=self.tenants)
            self._fields[measurement] = {
                name: kind for name, kind in fields.items() if kind in NUMBERS
            }
        return self._fields[measurement]

    def tag_matchers(self, measurement: str, matchers: Matchers) -> Matchers | None:
        """Return the conditions on the tags of a measurement; None if no series can match."""
        conditions = [matcher for matcher in matchers if matcher[0] != NAME_LABEL]
        tags_of: dict[str, list[str]] = {}
        for tag in self.tags_of(measurement) if conditions else ():
            tags_of.setdefault(label_name(tag), []).append(tag)
        wanted = list[TagMatcher]()
        for label, operator, text in conditions:
            tags = tags_of.get(label, [])
            if not tags and not _holds(operator, text, ""):
                return None
            # Of tags that are the same label, the first that a series has counts.
            if tags == [APPLIANCE_TAG] and self.names:
                wanted += self._appliance_matchers(operator, text)
            elif len(tags) == 1:
                wanted.append((tags[0], operator, text))
        return tuple(wanted)

    def _appliance_matchers(self, operator: str, text: str) -> list[TagMatcher]:
        """Return conditions on the IDs of appliances that all matching series fulfill, or more."""
        if operator.startswith("!") or _holds(operator, text, ""):
            return []
        holding = _holding(operator, text, self.names.values())
        ids = [key for key, name in self.names.items() if name in holding]
        # The label of an appliance that was deleted is its ID.
        pattern = "|".join([*map(re.escape, ids), text if "~" in operator else re.escape(text)])
        return [(APPLIANCE_TAG, "=~", pattern)]

    def labels(self, name: str, tags: Mapping[str, str]) -> Labels:
        """Return the labels of a series with some tags."""
        labels = {NAME_LABEL: name}
        for tag, text in tags.items():
            if tag != TENANT_TAG or self.tenants is None:
                shown = self.names.get(text, text) if tag == APPLIANCE_TAG else text
                labels.setdefault(label_name(tag), shown)
        return labels

    def _query(
        self,
        measurement: str,
        fields: tuple[str, ...],
        matchers: Matchers,
        span_ms: tuple[int, int],
    ) -> SampleQuery | None:
        """Return the query of a measurement; None if no series can match."""
        conditions = self.tag_matchers(measurement, matchers)
        if conditions is None:
            return None
        return SampleQuery(
            measurement=measurement,
            fields=fields,
            start_ns=span_ms[0] * _NS_PER_MS,
            end_ns=(span_ms[1] + 1) * _NS_PER_MS,
            tenants=self.tenants,
            matchers=conditions,
            max_samples=self.remaining,
        )

    def _assembled(
        self, columns: Iterable[tuple[str, SampleColumns]], matchers: Matchers
    ) -> Samples:
        """Return the series that match, each once."""
        parts, seen = list[Samples](), set[frozenset[tuple[str, str]]]()
        for measurement, part in columns:
            name = metric_name(measurement, part.field)
            labels = [self.labels(name, tags) for tags in part.tags]
            rows = []
            for row in matching_rows(labels, matchers):
                key = frozenset(labels[row].items())
                if key not in seen:
                    seen.add(key)
                    rows.append(row)
            parts.append(_by_time(labels, part, rows))
        return joined(parts)


def joined(parts: Sequence[Samples]) -> Samples:
    """Return the series of several parts."""
    if len(parts) == 1:
        return parts[0]
    lengths = [np.diff(part.offsets) for part in parts]
    return Samples(
        [labels for part in parts for labels in part.labels],
        np.concatenate([[0], np.cumsum(np.concatenate([*lengths, []]))]).astype(np.int64),
        np.concatenate([part.times_ms for part in parts] or [np.zeros(0, dtype=np.int64)]),
        np.concatenate([part.values for part in parts] or [np.zeros(0)]),
    )


def _by_time(labels: Sequence[Labels], columns: SampleColumns, rows: Sequence[int]) -> Samples:
    """Return some series of columns with their samples in order, one for each millisecond."""
    series = np.repeat(np.arange(len(labels)), columns.lengths)
    times_ms, values = columns.times_ns // _NS_PER_MS, columns.values
    if len(rows) < len(labels):
        is_wanted = np.isin(series, rows)
        series, times_ms, values = series[is_wanted], times_ms[is_wanted], values[is_wanted]
    if len(times_ms) and not _is_ordered(series, times_ms):
        first_ms = times_ms.min()
        order = np.argsort(
            series * (times_ms.max() - first_ms + 1) + (times_ms - first_ms), kind="stable"
        )
        series, times_ms, values = series[order], times_ms[order], values[order]
    is_last = np.ones(len(times_ms), dtype=bool)
    is_last[:-1] = (series[1:] != series[:-1]) | (times_ms[1:] != times_ms[:-1])
    if not is_last.all():
        series, times_ms, values = series[is_last], times_ms[is_last], values[is_last]
    lengths = np.bincount(series, minlength=len(labels))[np.asarray(rows, dtype=np.int64)]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Samples([labels[row] for row in rows], offsets, times_ms, values)


def _is_ordered(series: np.ndarray, times_ms: np.ndarray) -> bool:
    return bool(((times_ms[1:] > times_ms[:-1]) | (series[1:] != series[:-1])).all())


def matching_rows(labels: Sequence[Labels], matchers: Matchers) -> list[int]:
    """Return the series whose labels match."""
    rows = list(range(len(labels)))
    for label, operator, wanted in matchers:
        texts = [labels[row].get(label, "") for row in rows]
        holding = _holding(operator, wanted, texts)
        rows = [row for row, text in zip(rows, texts, strict=True) if text in holding]
    return rows


def _holds(operator: str, wanted: str, text: str) -> bool:
    return bool(_holding(operator, wanted, [text]))


def _holding(operator: str, wanted: str, texts: Iterable[str]) -> set[str]:
    """Return the texts for which a condition holds; a pattern is compiled once for all."""
    distinct = list(dict.fromkeys(texts))
    is_pattern, is_negated = "~" in operator, operator.startswith("!")
    matches = (
        full_matches(distinct, wanted) if is_pattern else [text == wanted for text in distinct]
    )
    return {
        text for text, is_equal in zip(distinct, matches, strict=True) if is_equal is not is_negated
    }
