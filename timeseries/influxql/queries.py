"""Queries: the answer of each statement, or its error."""

from collections.abc import Iterator, Sequence

from core.errors import InvalidInputError
from timeseries.influxql.conditions import Where, divided, search
from timeseries.influxql.parser import parse
from timeseries.influxql.reading import Measurement
from timeseries.influxql.results import ResultSeries
from timeseries.influxql.select import select
from timeseries.influxql.show import show
from timeseries.influxql.subqueries import Derived, Span, inherited, within
from timeseries.influxql.syntax import Pattern, Select, Show, Statement
from timeseries.promql.selection import Source

NOT_EXECUTED = "not executed"
_WITHOUT_SAMPLES = frozenset({"databases", "retention policies"})


def answers(
    source: Source, text: str, *, now_ns: int, epoch: str = ""
) -> Iterator[dict[str, object]]:
    """Yield the answer of each statement as JSON has it; none is evaluated after an error.

    Args:
        source: the samples.
        text: the statements.
        now_ns: the time.
        epoch: the unit of times, such as `ms`; RFC 3339 if it is empty.

    Raises:
        InfluxQLError: the text is invalid.
    """
    has_failed = False
    for index, statement in enumerate(parse(text)):
        answer: dict[str, object] = {"statement_id": index}
        if has_failed:
            yield answer | {"error": NOT_EXECUTED}
            continue
        try:
            series = [own.shown(epoch) for own in _series(source, statement, now_ns=now_ns)]
        except InvalidInputError as error:
            has_failed = True
            yield answer | {"error": error.message}
        else:
            yield answer | ({"series": series} if series else {})


def _series(source: Source, statement: Statement, *, now_ns: int) -> list[ResultSeries]:
    where = divided(statement.condition, now_ns=now_ns)
    if isinstance(statement, Select):
        return _selected(source, statement, where, now_ns=now_ns)
    return show(statement, _shown(source, statement, where))


def _selected(
    source: Source, statement: Select, where: Where, *, now_ns: int
) -> list[ResultSeries]:
    patterns = [pattern for pattern in statement.sources if not isinstance(pattern, Select)]
    measurements = _measurements(source, patterns, where)
    for subquery in statement.sources:
        if isinstance(subquery, Select):
            inner = inherited(subquery, statement)
            measurements += _derived(source, inner, where, now_ns=now_ns)
    return select(statement, measurements, now_ns=now_ns)


def _derived(source: Source, inner: Select, where: Where, *, now_ns: int) -> list[Measurement]:
    """Return the measurements of which a subquery has series."""

    def answer(span: Span) -> list[ResultSeries]:
        narrowed = within(divided(inner.condition, now_ns=now_ns), span)
        return _selected(source, inner, narrowed, now_ns=now_ns)

    span = where.start_ns, where.end_ns
    series = answer(span)
    return [
        Derived(source, name, where, answer, {span: series})
        for name in dict.fromkeys(own.name for own in series)
    ]


def _shown(source: Source, statement: Show, where: Where) -> Sequence[Measurement]:
    if statement.kind in _WITHOUT_SAMPLES:
        return []
    if statement.sources:
        return _measurements(source, statement.sources, where)
    return [Measurement(source, name, where) for name in source.measurements]


def _measurements(source: Source, sources: Sequence[Pattern], where: Where) -> list[Measurement]:
    """Return the measurements that some names or patterns mean, each once."""
    names: dict[str, None] = {}
    for pattern in sources:
        # A name is looked up by itself: to list all takes longer than most queries.
        names |= dict.fromkeys(
            [pattern] if isinstance(pattern, str) else search(source.measurements, pattern)
        )
    return [Measurement(source, name, where) for name in sorted(names) if source.numbers_of(name)]
