"""The parser of statements: SELECT without INTO, and the SHOW statements of clients.

Source: the reference of InfluxQL for InfluxDB 1.8, with what Grafana's editor writes.
"""

from timeseries.influxql.expressions import ExpressionParser
from timeseries.influxql.syntax import (
    Binary,
    Call,
    Column,
    Duration,
    Expression,
    Fill,
    InfluxQLError,
    Name,
    Number,
    Page,
    Pattern,
    Regex,
    Select,
    Show,
    Statement,
    Wildcard,
)

MAX_STATEMENTS = 100
MAX_COLUMNS = 100
MAX_SUBQUERIES = 20
_SHOWN = (
    ("databases",),
    ("retention", "policies"),
    ("measurements",),
    ("field", "keys"),
    ("tag", "keys"),
    ("tag", "values"),
)
_MAX_ROWS = 2**31
_MAX_DIGITS = 40
# Times are 64-bit numbers.
_MAX_WINDOW_NS = 2**61


def parse(text: str) -> list[Statement]:
    """Return the statements of a query, which semicolons separate.

    Raises:
        InfluxQLError: one of them is invalid or not supported, or there are too many.
    """
    parser = _StatementParser(text)
    statements: list[Statement] = []
    while parser.token.kind != "end":
        if not parser.accept(";"):
            statements.append(parser.statement())
            if parser.token.kind != "end" and not parser.accept(";"):
                parser.fail("; or the end")
        if len(statements) > MAX_STATEMENTS:
            raise InfluxQLError(f"The query has more than {MAX_STATEMENTS} statements.")
    return statements


class _StatementParser(ExpressionParser):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._subqueries = 0

    def statement(self) -> Statement:
        if self.accept("select"):
            return self._select()
        if self.accept("show"):
            return self._show()
        raise InfluxQLError(
            f"Found {self.token.shown} at column {self.token.column}. Only SELECT and SHOW are "
            "supported: this API reads."
        )

    def _select(self) -> Select:
        columns = [self._column()]
        while self.accept(","):
            columns.append(self._column())
        if len(columns) > MAX_COLUMNS:
            raise InfluxQLError(f"A SELECT has more than {MAX_COLUMNS} columns.")
        self.expect("from")
        sources = [self._source_or_subquery()]
        while self.accept(","):
            sources.append(self._source_or_subquery())
        condition = self._where()
        tags, interval_ns, offset_ns = self._group_by()
        fill, fill_value = self._fill()
        is_descending = self._order()
        rows = Page(self._amount("limit"), self._amount("offset"))
        series = Page(self._amount("slimit"), self._amount("soffset"))
        self._zone()
        return Select(
            columns=tuple(columns),
            sources=tuple(sources),
            condition=condition,
            group_tags=tags,
            interval_ns=interval_ns,
            offset_ns=offset_ns,
            fill=fill,
            fill_value=fill_value,
            is_descending=is_descending,
            rows=rows,
            series=series,
        )

    def _column(self) -> Column:
        expression = self.arithmetic()
        return Column(expression, self.identifier() if self.accept("as") else "")

    def _sources(self) -> tuple[Pattern, ...]:
        sources = [self._source()]
        while self.accept(","):
            sources.append(self._source())
        return tuple(sources)

    def _source_or_subquery(self) -> Pattern | Select:
        if not self.accept("("):
            return self._source()
        self._subqueries += 1
        if self._subqueries > MAX_SUBQUERIES:
            raise InfluxQLError(f"The query has more than {MAX_SUBQUERIES} subqueries.")
        self.expect("select")
        subquery = self._within(self._select)
        self.expect(")")
        return subquery

    def _source(self) -> Pattern:
        source = self._pattern()
        while self.accept("."):
            if self.token.keyword != ".":
                source = self._pattern()
        return source

    def _pattern(self) -> Pattern:
        if self.token.kind == "regex":
            return Regex(self.next().text)
        return self.identifier()

    def _where(self) -> Expression | None:
        return self.condition() if self.accept("where") else None

    def _group_by(self) -> tuple[tuple[str | Regex | Wildcard, ...], int, int]:
        if not self.accept("group", "by"):
            return (), 0, 0
        tags: list[str | Regex | Wildcard] = []
        interval_ns = offset_ns = 0
        while True:
            dimension = self.arithmetic()
            if isinstance(dimension, Name):
                tags.append(dimension.text)
            elif isinstance(dimension, Regex | Wildcard):
                tags.append(dimension)
            elif isinstance(dimension, Call) and dimension.function == "time" and not interval_ns:
                interval_ns, offset_ns = _window(dimension)
            else:
                raise InfluxQLError("GROUP BY takes tags, and time(INTERVAL) once.")
            if not self.accept(","):
                return tuple(tags), interval_ns, offset_ns

    def _fill(self) -> tuple[Fill, float]:
        if not self.accept("fill"):
            return Fill.NULL, 0.0
        self.expect("(")
        sign = "-" if self.accept("-") else ""
        token = self.next()
        self.expect(")")
        if token.kind == "number" and len(token.text) <= _MAX_DIGITS:
            return Fill.NUMBER, float(f"{sign}{token.text}")
        if token.keyword not in {"null", "none", "previous", "linear"}:
            raise InfluxQLError(
                f"fill({token.text[:50]}) at column {token.column} is not one of null, none, "
                "previous, linear, or a number."
            )
        return Fill(token.keyword), 0.0

    def _order(self) -> bool:
        if not self.accept("order", "by"):
            return False
        # Without a name, the order is that of time.
        if not self.accept("time") and self.token.keyword not in {"asc", "desc"}:
            self.fail("TIME: the only order is that of time")
        return self.accept("desc") or (self.accept("asc") and False)

    def _amount(self, keyword: str) -> int:
        return min(self.integer(), _MAX_ROWS) if self.accept(keyword) else 0

    def _zone(self) -> None:
        if not self.accept("tz"):
            return
        self.expect("(")
        token = self.next()
        self.expect(")")
        if token.text.upper() not in {"UTC", "ETC/UTC", ""}:
            raise InfluxQLError(
                f"tz({token.text[:50]!r}) is not supported: times are in UTC. Shift the windows as "
                "in time(1d, 6h)."
            )

    def _show(self) -> Show:
        words = next((words for words in _SHOWN if self.accept(*words)), None)
        if words is None:
            self.fail(" or ".join(" ".join(words) for words in _SHOWN).upper())
        kind = " ".join(words or ())
        if self.accept("on"):
            self.identifier()
        sources: tuple[Pattern, ...] = ()
        if kind == "measurements":
            sources = self._measurement_condition()
        elif kind in {"field keys", "tag keys", "tag values"} and self.accept("from"):
            sources = self._sources()
        keys = self._keys() if kind == "tag values" else ("", ())
        condition = self._where()
        if self.accept("order", "by"):
            # Lists are in the order of names always, which is the only one that InfluxDB has.
            self.identifier()
            self.accept("asc")
        page = Page(self._amount("limit"), self._amount("offset"))
        return Show(kind=kind, sources=sources, keys=keys, condition=condition, page=page)

    def _measurement_condition(self) -> tuple[Pattern, ...]:
        if not self.accept("with", "measurement"):
            return ()
        if not self.accept("=~"):
            self.expect("=")
        return (self._pattern(),)

    def _keys(self) -> tuple[str, tuple[Pattern, ...]]:
        self.expect("with", "key")
        if self.accept("in"):
            self.expect("(")
            keys = self._sources()
            self.expect(")")
            return "=", keys
        operator = self.next().keyword.replace("<>", "!=")
        if operator not in {"=", "!=", "=~", "!~"}:
            self.fail("IN or a comparison")
        return operator, (self._pattern(),)


def _window(call: Call) -> tuple[int, int]:
    """Return the width and the offset of windows."""
    durations = [_signed_ns(argument) for argument in call.arguments]
    if len(durations) not in {1, 2} or None in durations or (durations[0] or 0) <= 0:
        raise InfluxQLError("time() takes a duration above 0, and an offset: time(10m, 2m).")
    if any(abs(duration or 0) > _MAX_WINDOW_NS for duration in durations):
        raise InfluxQLError("time() takes durations of at most 73 years.")
    return durations[0] or 0, (durations[1] or 0) if len(durations) > 1 else 0


def _signed_ns(argument: Expression) -> int | None:
    if isinstance(argument, Duration):
        return argument.ns
    if isinstance(argument, Binary) and argument.left == Number(-1.0):
        return -argument.right.ns if isinstance(argument.right, Duration) else None
    return None
