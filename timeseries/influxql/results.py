"""The series of an answer, and their JSON in the form of InfluxDB 1.8."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from core.clock import from_ns
from timeseries.influxql.syntax import StatementError
from timeseries.influxql.tokens import DURATION_NS

Cell = str | float | int | bool | None
MAX_VALUES = 1_000_000
EPOCHS = {unit: ns for unit, ns in DURATION_NS.items() if unit not in {"d", "w"}}
_MAX_EXACT = 2**53
_NS_PER_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ResultSeries:
    """A series of an answer.

    Attributes:
        name: the measurement; empty for none.
        tags: the tags that the answer is grouped by.
        columns: the names of the columns.
        rows: the rows; the first cell is a time in nanoseconds, if the first column is `time`.
    """

    name: str
    columns: Sequence[str]
    rows: Iterable[Sequence[Cell]]
    tags: Mapping[str, str] = field(default_factory=dict)

    def shown(self, epoch: str) -> dict[str, object]:
        """Return the series as JSON has it.

        Args:
            epoch: the unit of times; RFC 3339 if it is empty.
        """
        rows = [list(row) for row in self.rows]
        if self.columns[:1] == ["time"]:
            for row in rows:
                row[0] = _time(int(row[0] or 0), epoch)
        head: dict[str, object] = {"name": self.name} if self.name else {}
        tags = {"tags": dict(self.tags)} if self.tags else {}
        return {**head, **tags, "columns": list(self.columns), "values": rows}


def check_values(count: int) -> None:
    """Check that an answer is not too large.

    Raises:
        StatementError: it is.
    """
    if count > MAX_VALUES:
        raise StatementError(
            f"The answer has more than {MAX_VALUES:,} values. Use a larger interval, a shorter "
            "range, more conditions, or LIMIT."
        )


def cell(value: float) -> Cell:
    """Return a number as JSON has it: whole ones without a fraction, and null for NaN."""
    if value != value:  # noqa: PLR0124 - in a tenth of the time of `isnan`
        return None
    return int(value) if value.is_integer() and abs(value) < _MAX_EXACT else value


def _time(time_ns: int, epoch: str) -> str | int:
    if epoch:
        return time_ns // EPOCHS[epoch]
    seconds, ns = divmod(time_ns, _NS_PER_SECOND)
    fraction = f".{ns:09d}".rstrip("0") if ns else ""
    return f"{from_ns(seconds * _NS_PER_SECOND):%Y-%m-%dT%H:%M:%S}{fraction}Z"
