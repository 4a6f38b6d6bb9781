"""Requests of remote_write 1.0: series with names as PromQL has them, in protobuf and snappy.

Both are written here, which spares the agent two packages: the message has two levels, and snappy's
block format allows data that is not compressed, which on a site's network costs less than CPU time.

Source: https://prometheus.io/docs/specs/prw/remote_write_spec/ and snappy's format_description.txt.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from plugins.prometheus.relabeling import RelabelRule, relabeled
from timeseries.points import Block
from timeseries.prometheus_names import label_name, metric_name

NAME_LABEL = "__name__"
MAX_CACHED_SERIES = 50_000
_NS_PER_MS = 1_000_000
_CHUNK_BYTES = 65_536
# Tags of fields: the number in the upper bits, and whether a length or a fixed value follows.
_FIRST, _SECOND, _FIRST_DOUBLE, _SECOND_INTEGER = b"\x0a", b"\x12", b"\x09", b"\x10"
_ONE_BYTE_LITERAL, _TWO_BYTE_LITERAL = 60, 61
_DOUBLE = struct.Struct("<d")
_SeriesKey = tuple[str, str, tuple[str, ...], tuple[str, ...]]
_Samples = list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Series:
    """A series: its labels as a message has them, and times in milliseconds with values."""

    labels: bytes
    samples: Sequence[tuple[int, float]]


class SeriesBuilder:
    """Turns points into series.

    Args:
        external_labels: are added where a series lacks them.
        rules: keep, drop and rewrite series.
    """

    def __init__(self, external_labels: Mapping[str, str], rules: Sequence[RelabelRule]) -> None:
        self._external_labels = external_labels
        self._rules = rules
        self._labels: dict[_SeriesKey, bytes | None] = {}

    def series_of(self, blocks: Iterable[Block]) -> list[Series]:
        """Return the numbers in some blocks, each series once and by time; texts are left out."""
        samples_of: dict[bytes, _Samples] = {}
        for block in blocks:
            for field, kind, column in zip(block.fields, block.kinds, block.values, strict=True):
                if kind is not str:
                    self._add(samples_of, block, field, column)
        return [Series(labels, sorted(samples)) for labels, samples in samples_of.items()]

    def _add(
        self,
        samples_of: dict[bytes, _Samples],
        block: Block,
        field: str,
        column: Sequence[float | int | bool | str],
    ) -> None:
        encoded = [
            self._encoded((block.measurement, field, block.tags, tag_set))
            for tag_set in block.tag_sets
        ]
        for row, value, time_ns in zip(block.tag_set_of, column, block.times_ns, strict=True):
            labels = encoded[row]
            if labels is not None:
                sample = (time_ns // _NS_PER_MS, float(value))
                samples_of.setdefault(labels, []).append(sample)

    def _encoded(self, key: _SeriesKey) -> bytes | None:
        """Return the labels of a series; None if a rule drops it."""
        if key not in self._labels:
            if len(self._labels) >= MAX_CACHED_SERIES:
                self._labels.clear()
            measurement, field, tags, texts = key
            own = {label_name(tag): text for tag, text in zip(tags, texts, strict=True)}
            labels = {**self._external_labels, **own, NAME_LABEL: metric_name(measurement, field)}
            result = relabeled(labels, self._rules)
            self._labels[key] = None if result is None else _labels_message(result)
        return self._labels[key]


def write_request(series: Iterable[Series]) -> bytes:
    """Return the body of a request."""
    return snappy(b"".join(_FIRST + _sized(_series_message(own)) for own in series))


def snappy(content: bytes) -> bytes:
    """Return content in snappy's block format, without compression."""
    parts = [_varint(len(content))]
    for start in range(0, len(content), _CHUNK_BYTES):
        chunk = content[start : start + _CHUNK_BYTES]
        parts += [_literal_head(len(chunk) - 1), chunk]
    return b"".join(parts)


def _literal_head(size: int) -> bytes:
    """Return the head of a literal of snappy that is one byte longer than a size."""
    if size < _ONE_BYTE_LITERAL:
        return struct.pack("<B", size << 2)
    if size <= 0xFF:  # noqa: PLR2004 - of one byte
        return struct.pack("<BB", _ONE_BYTE_LITERAL << 2, size)
    return struct.pack("<BH", _TWO_BYTE_LITERAL << 2, size)


def _series_message(series: Series) -> bytes:
    samples = (
        _FIRST_DOUBLE + _DOUBLE.pack(value) + _SECOND_INTEGER + _varint(time_ms & (2**64 - 1))
        for time_ms, value in series.samples
    )
    return series.labels + b"".join(_SECOND + _sized(sample) for sample in samples)


def _labels_message(labels: Mapping[str, str]) -> bytes:
    """Return labels, sorted as the protocol wants them; empty ones count as missing."""
    pairs = (
        _FIRST + _sized(name.encode()) + _SECOND + _sized(text.encode())
        for name, text in sorted(labels.items())
        if text
    )
    return b"".join(_FIRST + _sized(pair) for pair in pairs)


def _sized(content: bytes) -> bytes:
    return _varint(len(content)) + content


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits of each byte
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
