"""Answers in the formats of Prometheus: JSON of queries, and text that its federation scrapes.

The pairs of times and values are put together as columns of text: as objects of Python, millions of
them would take longer than the query.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa

from timeseries.promql.aggregation import number_text
from timeseries.promql.queries import Answer
from timeseries.promql.selection import Matchers, Source
from timeseries.promql.values import (
    LOOKBACK_MS,
    NAME_LABEL,
    Floats,
    Grid,
    Integers,
    Labels,
    Samples,
    Vector,
)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def rendered(answer: Answer) -> bytes:
    """Return the `data` of an answer."""
    value, times_ms = answer.value, answer.grid.times_ms
    is_range = answer.grid.step_ms > 0
    if isinstance(value, Samples):
        return _matrix(value.labels, value.offsets, value.times_ms, value.values)
    if isinstance(value, Vector):
        if not is_range:
            rows = np.flatnonzero(value.is_present[:, 0])
            at_ms = np.repeat(times_ms, len(rows))
            labels = [value.labels[row] for row in rows.tolist()]
            return _vector(labels, at_ms, value.values[rows, 0])
        offsets = np.concatenate([[0], np.cumsum(value.is_present.sum(axis=1))])
        times = np.broadcast_to(times_ms, value.values.shape)[value.is_present]
        return _matrix(value.labels, offsets, times, value.values[value.is_present])
    if isinstance(value, str):
        return _data(
            "string",
            f"[{seconds_text(int(times_ms[0]))},".encode() + msgspec.json.encode(value) + b"]",
        )
    if is_range:
        return _matrix([{}], np.array([0, len(times_ms)]), times_ms, value)
    return _data("scalar", _pairs(times_ms, value)[0].as_py().encode())


def _vector(labels: Sequence[Labels], times_ms: Integers, values: Floats) -> bytes:
    pairs = _pairs(times_ms, values).to_pylist()
    return _data("vector", _rows(labels, "value", pairs))


def _matrix(
    labels: Sequence[Labels], offsets: Integers, times_ms: Integers, values: Floats
) -> bytes:
    import pyarrow.compute as pc  # noqa: PLC0415 - 8 MiB

    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), _pairs(times_ms, values))
    texts = pc.binary_join(lists, ",").to_pylist()
    return _data("matrix", _rows(labels, "values", [f"[{text}]" for text in texts]))


def _rows(labels: Sequence[Labels], key: str, texts: Sequence[str]) -> bytes:
    rows = [
        b'{"metric":%b,"%b":%b}' % (msgspec.json.encode(own), key.encode(), text.encode())
        for own, text in zip(labels, texts, strict=True)
    ]
    return b"[%b]" % b",".join(rows)


def _data(kind: str, result: bytes) -> bytes:
    return b'{"resultType":"%b","result":%b}' % (kind.encode(), result)


def _pairs(times_ms: Integers, values: Floats) -> pa.Array:
    """Return `[time,"value"]` for each pair."""
    import pyarrow.compute as pc  # noqa: PLC0415 - 8 MiB

    # There are few different times.
    distinct, index = np.unique(times_ms, return_inverse=True)
    prefixes = pa.array([f"[{seconds_text(at_ms)}," for at_ms in distinct.tolist()], pa.string())
    prefixes = prefixes.take(pa.array(index))
    return pc.binary_join_element_wise(prefixes, number_texts(values), pa.scalar("]"), "")


def seconds_text(at_ms: int) -> str:
    """Return a time in seconds."""
    seconds, rest_ms = divmod(at_ms, 1000)
    return f"{seconds}.{rest_ms:03d}" if rest_ms else str(seconds)


def number_texts(values: Floats) -> pa.Array:
    """Return numbers as quoted text, in the notation of Prometheus."""
    import pyarrow.compute as pc  # noqa: PLC0415 - 8 MiB

    texts = pc.cast(pa.array(values), pa.string())
    texts = pc.binary_join_element_wise('"', texts, '"', "")
    for is_special, text in (
        (np.isnan(values), '"NaN"'),
        (np.isposinf(values), '"+Inf"'),
        (np.isneginf(values), '"-Inf"'),
    ):
        if is_special.any():
            texts = pc.if_else(pa.array(is_special), text, texts)
    return texts


def exposition(source: Source, selectors: Sequence[Matchers], *, at_ms: int) -> str:
    """Return the newest sample of each series that matches any selector, sorted by metric."""
    lines_of: dict[str, set[str]] = {}
    for matchers in selectors:
        samples = source.samples(matchers, start_ms=at_ms - LOOKBACK_MS, end_ms=at_ms)
        index, is_present = samples.newest(Grid(at_ms, 0, 1))
        for row, labels in enumerate(samples.labels):
            if is_present[row, 0]:
                at = index[row, 0]
                value = number_text(samples.values[at])
                line = f"{_series(labels)} {value} {samples.times_ms[at]}\n"
                lines_of.setdefault(labels[NAME_LABEL], set()).add(line)
    return "".join(
        text
        for name, lines in sorted(lines_of.items())
        for text in (f"# TYPE {name} untyped\n", *sorted(lines))
    )


def _series(labels: Labels) -> str:
    pairs = ",".join(
        f'{name}="{text.translate(_ESCAPES)}"'
        for name, text in sorted(labels.items())
        if name != NAME_LABEL
    )
    return f"{labels[NAME_LABEL]}{{{pairs}}}" if pairs else labels[NAME_LABEL]
