"""Functions of instant vectors and of labels."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from timeseries.promql.patterns import full_matches, replaced
from timeseries.promql.syntax import EvaluationError
from timeseries.promql.values import (
    NAME_LABEL,
    Flags,
    Floats,
    Integers,
    Labels,
    Scalar,
    Vector,
    group_rows,
    key_of,
)

LE_LABEL = "le"
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Parentheses within these are no groups.
_LITERAL = re.compile(r"\\Q.*?(?:\\E|$)|\\.|\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]])*\]", re.DOTALL)
_REFERENCE = re.compile(r"\$(?:\$|(\d+)|(\w+)|\{(\d+)\}|\{(\w+)\})")

ELEMENTWISE: Mapping[str, Callable[[Floats], Floats]] = {
    "abs": np.abs,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "ceil": np.ceil,
    "cos": np.cos,
    "cosh": np.cosh,
    "deg": np.degrees,
    "exp": np.exp,
    "floor": np.floor,
    "ln": np.log,
    "log10": np.log10,
    "log2": np.log2,
    "rad": np.radians,
    "sgn": np.sign,
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
}


_Dates = NDArray[np.datetime64]
# The years 1 to 9999, in seconds since 1970.
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799


def _calendar(part: Callable[[_Dates], Any]) -> Callable[[Floats], Floats]:
    """Return a function of times in seconds; of times that no calendar has, NaN."""

    def of_seconds(seconds: Floats) -> Floats:
        is_date = (seconds >= _FIRST_SECOND) & (seconds <= _LAST_SECOND)
        dates = np.where(is_date, seconds, 0.0).astype(np.int64).astype("datetime64[s]")
        return np.where(is_date, part(dates), np.nan)

    return of_seconds


def _count(dates: _Dates, unit: str) -> Integers:
    """Return the number of whole units since 1970."""
    return dates.astype(f"datetime64[{unit}]").astype(np.int64)


def _first_day(dates: _Dates, unit: str, *, after: int = 0) -> Integers:
    """Return the first day of a month or year, or of one after it, in days since 1970."""
    return (dates.astype(f"datetime64[{unit}]") + after).astype("datetime64[D]").astype(np.int64)


CALENDAR: Mapping[str, Callable[[Floats], Floats]] = {
    "day_of_month": _calendar(lambda at: _count(at, "D") - _first_day(at, "M") + 1),
    # 1970 began on a Thursday.
    "day_of_week": _calendar(lambda at: (_count(at, "D") + 4) % 7),
    "day_of_year": _calendar(lambda at: _count(at, "D") - _first_day(at, "Y") + 1),
    "days_in_month": _calendar(lambda at: _first_day(at, "M", after=1) - _first_day(at, "M")),
    "hour": _calendar(lambda at: _count(at, "h") % 24),
    "minute": _calendar(lambda at: _count(at, "m") % 60),
    "month": _calendar(lambda at: _count(at, "M") % 12 + 1),
    "year": _calendar(lambda at: _count(at, "Y") + 1970),
}


def rounded(values: Floats, to_nearest: Scalar) -> Floats:
    """Return values rounded to multiples, half of one upwards."""
    inverse = 1.0 / to_nearest
    return np.floor(values * inverse + 0.5) / inverse


def clamped(vector: Vector, low: Scalar, high: Scalar) -> Vector:
    """Return values within bounds, which are a number for each step; none where low > high."""
    is_present = vector.is_present & ~(low > high)
    values = np.maximum(low, np.minimum(high, vector.values))
    return Vector(vector.labels, vector.values, is_present).unnamed(values)


def scalar_of(vector: Vector) -> Scalar:
    """Return the value of a vector's only series at each step, NaN without or with several."""
    values = np.where(vector.is_present, vector.values, 0.0).sum(axis=0)
    return np.where(vector.is_present.sum(axis=0) == 1, values, np.nan)


def absent(vector: Vector, labels: Labels) -> Vector:
    """Return 1 where no series is present, with these labels."""
    is_absent: Flags = np.logical_not(np.any(vector.is_present, axis=0))
    return Vector([labels], np.ones((1, len(is_absent))), is_absent[None, :]).compact()


def label_replace(
    vector: Vector, target: str, replacement: str, source: str, pattern: str
) -> Vector:
    """Return series with a label that is made from another one, where that one matches.

    Args:
        vector: the series.
        target: the label to set.
        replacement: its value, with `$1` for the first group of the pattern.
        source: the label to read.
        pattern: a pattern that must match it as a whole.
    """
    check_label(target)
    texts = [labels.get(source, "") for labels in vector.labels]
    is_match = full_matches(texts, pattern)
    matching = [text for text, matches in zip(texts, is_match, strict=True) if matches]
    results = iter(replaced(matching, pattern, _rewrite(replacement, pattern)))
    labels = [
        _with_label(own, target, next(results)) if matches else own
        for own, matches in zip(vector.labels, is_match, strict=True)
    ]
    return Vector.merged(labels, vector.values, vector.is_present)


def label_join(vector: Vector, target: str, separator: str, sources: Sequence[str]) -> Vector:
    """Return series with a label that is made of others."""
    check_label(target)
    labels = [
        _with_label(own, target, separator.join(own.get(source, "") for source in sources))
        for own in vector.labels
    ]
    return Vector.merged(labels, vector.values, vector.is_present)


def histogram_quantile(q: Scalar, vector: Vector) -> Vector:
    """Return a quantile of each histogram, from the counts of its buckets."""
    bounds = [_bound(labels.get(LE_LABEL)) for labels in vector.labels]
    rows = [row for row, bound in enumerate(bounds) if bound is not None]
    buckets = vector.select(rows)
    own_labels = [
        {name: text for name, text in labels.items() if name not in {LE_LABEL, NAME_LABEL}}
        for labels in buckets.labels
    ]
    groups = group_rows(own_labels, key_of)
    steps = vector.values.shape[1]
    values = np.full((len(groups), steps), np.nan)
    is_present = np.zeros(values.shape, dtype=bool)
    for at, members in enumerate(groups.values()):
        members.sort(key=lambda member: bounds[rows[member]] or 0.0)
        upper = np.array([bounds[rows[member]] for member in members])
        own = buckets.select(members)
        is_present[at] = own.is_present.any(axis=0)
        for pattern in np.unique(own.is_present, axis=1).T:
            columns = np.flatnonzero(np.all(own.is_present == pattern[:, None], axis=0))
            counts = own.values[pattern][:, columns]
            values[at, columns] = _bucket_quantiles(q[columns], upper[pattern], counts)
    return Vector([own_labels[members[0]] for members in groups.values()], values, is_present)


def _bucket_quantiles(q: Scalar, upper: Floats, counts: Floats) -> Floats:
    """Return the quantile at some steps, from the counts by bucket and step."""
    if not len(upper) or upper[-1] != np.inf:
        return np.full(len(q), np.nan)
    bounds, starts = np.unique(upper, return_index=True)
    counts = np.maximum.accumulate(np.add.reduceat(counts, starts, axis=0), axis=0)
    if len(bounds) < 2:  # noqa: PLR2004 - a histogram has a bucket besides +Inf
        return np.full(len(q), np.nan)
    total = counts[-1]
    rank = q * total
    bucket = (counts[:-1] < rank).sum(axis=0)
    inner = np.minimum(bucket, len(bounds) - 2)
    steps = np.arange(len(q))
    before = np.where(inner > 0, counts[np.maximum(inner - 1, 0), steps], 0.0)
    low = np.where(inner > 0, bounds[np.maximum(inner - 1, 0)], 0.0)
    share = (rank - before) / (counts[inner, steps] - before)
    values = low + (bounds[inner] - low) * share
    values = np.where((bucket == 0) & (bounds[0] <= 0), bounds[0], values)
    values = np.where(bucket == len(bounds) - 1, bounds[-2], values)
    values = np.where(total == 0, np.nan, values)
    return np.select([np.isnan(q), q < 0, q > 1], [np.nan, -np.inf, np.inf], values)


def ordered(vector: Vector, *, is_descending: bool) -> Vector:
    """Return the series of an instant by value, NaN at the end."""
    values = vector.values[:, 0]
    order = np.argsort(np.where(np.isnan(values), np.inf, -values if is_descending else values))
    return vector.select(order)


def _bound(text: str | None) -> float | None:
    """Return the upper bound of a bucket; None if there is none."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _rewrite(replacement: str, pattern: str) -> str:
    """Return a replacement with `$1` or `${name}` in the notation of RE2."""
    names = re.findall(r"\((?!\?)|\(\?P?<(\w+)>", _LITERAL.sub("", pattern))

    def reference(match: re.Match[str]) -> str:
        number = match[1] or match[3]
        name = match[2] or match[4]
        if match[0] == "$$":
            return "$"
        if name:
            number = str(names.index(name) + 1) if name in names else None
        is_group = number is not None and int(number) <= len(names)
        return f"\\{number}" if is_group else ""

    return _REFERENCE.sub(reference, replacement.replace("\\", r"\\"))


def _with_label(labels: Labels, name: str, text: str) -> Labels:
    others = {label: value for label, value in labels.items() if label != name}
    return {**others, name: text} if text else others


def check_label(name: str) -> None:
    """Raise `EvaluationError` unless a label can have this name."""
    if not _LABEL.fullmatch(name):
        raise EvaluationError(f"{name!r} is not the name of a label.")
