"""The statements of InfluxQL as trees, and the errors of a text that is none.

A *source* is a measurement or a pattern of measurements; databases and retention policies before it
are read and ignored, as a tenant has a single one.
"""

from dataclasses import dataclass
from enum import StrEnum

from core.errors import InvalidInputError


class InfluxQLError(InvalidInputError):
    """A text is not InfluxQL, or has a statement that is not supported."""

    status = 400
    default_code = "invalid_influxql"


class StatementError(InvalidInputError):
    """A statement can't be evaluated over these samples; the others of its query can."""

    default_code = "influxql_statement"


@dataclass(frozen=True, slots=True)
class Number:
    """A number."""

    value: float


@dataclass(frozen=True, slots=True)
class Duration:
    """A duration, such as `10m`."""

    ns: int


@dataclass(frozen=True, slots=True)
class Text:
    """A text in single quotes."""

    value: str


@dataclass(frozen=True, slots=True)
class Regex:
    """A pattern between slashes, which matches anywhere."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Wildcard:
    """The asterisk: all fields, or all tags."""


@dataclass(frozen=True, slots=True)
class Name:
    """A field or a tag; `kind` is `field` or `tag` where the text says which, otherwise empty."""

    text: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """A function with its arguments; its name is in lower case."""

    function: str
    arguments: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Binary:
    """Arithmetic, or a comparison, of two expressions."""

    operator: str
    left: "Expression"
    right: "Expression"


@dataclass(frozen=True, slots=True)
class Logical:
    """Conditions of which all (`and`) or any (`or`) must hold."""

    operator: str
    operands: tuple["Expression", ...]


Expression = Number | Duration | Text | Regex | Wildcard | Name | Call | Binary | Logical
Pattern = str | Regex


class Fill(StrEnum):
    """The value of windows without samples."""

    NULL = "null"
    NONE = "none"
    PREVIOUS = "previous"
    LINEAR = "linear"
    NUMBER = "number"


@dataclass(frozen=True, slots=True)
class Column:
    """An expression of a SELECT and the name that the answer has for it."""

    expression: Expression
    alias: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """The part of a list to return; a limit of 0 is none."""

    limit: int = 0
    offset: int = 0

    def slice(self) -> slice:
        """Return the part as a slice."""
        return slice(self.offset, self.offset + self.limit if self.limit else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Select:
    """A SELECT.

    Attributes:
        columns: the expressions.
        sources: the measurements, and subqueries.
        condition: on tags and time.
        group_tags: the tags that split the answer into series.
        interval_ns: the width of the windows; 0 for none.
        offset_ns: how much later than the epoch windows begin.
        fill: the value of empty windows.
        fill_value: the number of `Fill.NUMBER`.
        is_descending: whether the newest come first.
        rows: the rows of each series.
        series: the series of each measurement.
    """

    columns: tuple[Column, ...]
    sources: tuple["Pattern | Select", ...]
    condition: Expression | None = None
    group_tags: tuple[str | Regex | Wildcard, ...] = ()
    interval_ns: int = 0
    offset_ns: int = 0
    fill: Fill = Fill.NULL
    fill_value: float = 0.0
    is_descending: bool = False
    rows: Page = Page()
    series: Page = Page()


@dataclass(frozen=True, slots=True, kw_only=True)
class Show:
    """A SHOW.

    Attributes:
        kind: what it lists, such as `tag values`.
        sources: the measurements; none means all.
        keys: the operator and the tags, or the pattern, of `WITH KEY`.
        condition: on tags and time.
        page: the part of the list of each measurement.
    """

    kind: str
    sources: tuple[Pattern, ...] = ()
    keys: tuple[str, tuple[Pattern, ...]] = ("", ())
    condition: Expression | None = None
    page: Page = Page()


Statement = Select | Show
