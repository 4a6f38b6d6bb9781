"""The text formats of Prometheus and OpenMetrics: one sample a line.

A target repeats the names and labels of its samples in every scrape. What precedes the value is
therefore parsed once and remembered: a line that begins with it needs no more than its number read.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/,
https://prometheus.io/docs/specs/om/open_metrics_spec/
"""

import re
from collections.abc import Iterator, Mapping
from typing import Generic, NamedTuple, TypeVar

_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*\s*=\s*"(?:[^"\\]|\\.)*+"'
_LINE = re.compile(
    r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)"
    rf"(?:\s*\{{\s*(?P<labels>(?:{_LABEL}(?:\s*,\s*{_LABEL})*+)?)\s*,?\s*\}})?"
    r"\s+(?P<value>[^\s#]+)(?:\s+(?P<time>[^\s#]+))?\s*(?:#.*)?"
)
_PAIR = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*+)"')
_ESCAPED = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "\\": "\\", '"': '"'}

K = TypeVar("K")


class ExpositionError(Exception):
    """A line is no sample."""


class Line(NamedTuple):
    """A sample as it was read; `time` is the text of its time, "" without one.

    Attributes:
        head: what precedes the value.
    """

    head: str
    name: str
    labels: Mapping[str, str]
    value: float
    time: str


class HeadCache(Generic[K]):
    """What became of the heads of a target's lines; those of the last scrape are kept."""

    def __init__(self) -> None:
        self._before: dict[str, K] = {}
        self.current: dict[str, K] = {}

    def start(self) -> None:
        """Begin a scrape: what it doesn't have is forgotten after the next one."""
        self._before, self.current = self.current, {}

    def get(self, head: str) -> K | None:
        """Return what was made of a head."""
        made = self.current.get(head)
        if made is None:
            made = self._before.get(head)
            if made is not None:
                self.current[head] = made
        return made


def sample_lines(text: str) -> Iterator[str]:
    """Yield the lines that are samples."""
    for line in text.split("\n"):
        if line and line[0] != "#":
            stripped = line.strip()
            if stripped:
                yield stripped


def parse_line(line: str) -> Line:
    """Return a sample.

    Raises:
        ExpositionError: the line is none.
    """
    match = _LINE.fullmatch(line)
    if match is None:
        raise ExpositionError(f"{line[:80]!r} is not a sample")
    labels = {}
    for name, text in _PAIR.findall(match["labels"] or ""):
        labels[name] = _ESCAPED.sub(_unescaped, text) if "\\" in text else text
    try:
        value = float(match["value"])
    except ValueError as error:
        raise ExpositionError(f"{match['value'][:40]!r} is not a number") from error
    head = line[: match.start("value")].rstrip()
    return Line(head, match["name"], labels, value, match["time"] or "")


def _unescaped(match: re.Match[str]) -> str:
    return _ESCAPES.get(match[1], match[0])
