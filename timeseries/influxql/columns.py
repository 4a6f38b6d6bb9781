"""The columns of a SELECT: wildcards written out, names as InfluxDB gives them, and checks."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from core.clock import NS_PER_SECOND
from timeseries.influxql.conditions import TIME, search
from timeseries.influxql.lines import TRANSFORMATIONS, Transformation
from timeseries.influxql.syntax import (
    Binary,
    Call,
    Column,
    Duration,
    Expression,
    Name,
    Number,
    Regex,
    Select,
    StatementError,
    Wildcard,
)
from timeseries.influxql.windows import (
    REDUCERS,
    Reduced,
    Segments,
    count_distinct,
    integral,
    percentile,
)

OPERATORS = frozenset({"+", "-", "*", "/", "%"})
SELECTORS = frozenset({"first", "last", "min", "max", "percentile"})
_MAX_AVERAGED = 10_000
_MAX_PERCENT = 100
PICKERS = frozenset({"top", "bottom", "distinct"})
"""Functions with several rows for a window."""
_MAX_ARGUMENTS, _MAX_PICKED = 20, 10_000
_COUNTS = (
    {"percentile": (2, 2), "integral": (1, 2), "distinct": (1, 1)}
    | dict.fromkeys(("top", "bottom"), (2, _MAX_ARGUMENTS))
    | dict.fromkeys(REDUCERS, (1, 1))
)


@dataclass(frozen=True, slots=True)
class Reduction:
    """A call that reduces the windows of a field."""

    function: str
    field: str
    reduce: Callable[[Segments], Reduced]


def expanded(columns: Sequence[Column], fields: Sequence[str], tags: Sequence[str]) -> list[Column]:
    """Return columns with a name each, and those of wildcards and patterns in their place.

    Args:
        columns: as the statement has them; the time, which every answer has, is left out.
        fields: the fields of the measurement.
        tags: its tags that split no series of the answer.
    """
    listed: list[Column] = []
    for column in columns:
        if column.expression != Name(TIME):
            listed += _expanded(column, fields, tags)
    names = {column.alias for column in listed}
    return [
        column
        if column.alias
        else replace(column, alias=_unique(name_of(column.expression), names))
        for column in listed
    ]


def _unique(base: str, names: set[str]) -> str:
    """Return a name that no column has yet, and remember it."""
    candidates = (f"{base}_{count}" if count else base for count in itertools.count())
    name = next(candidate for candidate in candidates if candidate not in names)
    names.add(name)
    return name


def _expanded(column: Column, fields: Sequence[str], tags: Sequence[str]) -> list[Column]:
    expression = column.expression
    if isinstance(expression, Wildcard):
        return [Column(Name(name)) for name in sorted({*fields, *tags})]
    if isinstance(expression, Regex):
        return [Column(Name(name)) for name in search(sorted({*fields, *tags}), expression)]
    if not isinstance(expression, Call) or not expression.arguments:
        return [column]
    first, *others = expression.arguments
    if not isinstance(first, Wildcard | Regex):
        return [column]
    names = fields if isinstance(first, Wildcard) else search(fields, first)
    return [
        Column(
            replace(expression, arguments=(Name(name), *others)),
            f"{column.alias or expression.function}_{name}",
        )
        for name in names
    ]


def name_of(expression: Expression) -> str:
    """Return the name of a column without an alias."""
    if isinstance(expression, Name):
        return expression.text
    if isinstance(expression, Call):
        return expression.function
    if isinstance(expression, Binary):
        return "_".join(filter(None, map(name_of, (expression.left, expression.right))))
    return ""


def check_columns(statement: Select) -> bool:
    """Return whether a statement has functions, as opposed to fields alone.

    Raises:
        StatementError: it has both, an unknown function, or wrong arguments.
    """
    expressions = [column.expression for column in statement.columns]
    calls = [call for expression in expressions for call in calls_of(expression)]
    has_fields = any(map(_has_fields, expressions))
    if calls and has_fields:
        raise StatementError("mixing aggregate and non-aggregate queries is not supported")
    if not calls and statement.interval_ns:
        raise StatementError("GROUP BY requires at least one aggregate function")
    if not calls and not has_fields:
        raise StatementError("field must contain at least one variable")
    for call in calls:
        _check_call(call, has_windows=bool(statement.interval_ns))
        others = [own for own in expressions if own not in {call, Name(TIME)}]
        if call.function in PICKERS and (others or len(calls) > 1):
            raise StatementError(
                f"{call.function}() cannot be combined with other functions, fields or arithmetic"
            )
    return bool(calls)


def picker_of(statement: Select) -> Column | None:
    """Return the column of a function with several rows for a window; such a one is alone."""
    for column in statement.columns:
        call = column.expression
        if isinstance(call, Call) and call.function in PICKERS:
            return column if column.alias else replace(column, alias=call.function)
    return None


def _has_fields(expression: Expression) -> bool:
    if isinstance(expression, Binary):
        return _has_fields(expression.left) or _has_fields(expression.right)
    return isinstance(expression, Name | Wildcard | Regex) and expression != Name(TIME)


def _check_call(call: Call, *, has_windows: bool) -> None:
    function, count = call.function, len(call.arguments)
    if function not in TRANSFORMATIONS and function not in _COUNTS:
        raise StatementError(
            f"The function {function}() is not supported. Use one of "
            f"{', '.join(sorted([*_COUNTS, *TRANSFORMATIONS]))}."
        )
    low, high = _COUNTS.get(function, (1, 2))
    if not low <= count <= high:
        raise StatementError(
            f"invalid number of arguments for {function}, expected {high}, got {count}"
        )
    first = call.arguments[0]
    if function in TRANSFORMATIONS:
        _check_transformation(call, has_windows=has_windows)
    elif function in PICKERS:
        _check_picker(call)
    elif function == "count" and isinstance(first, Call) and first.function == "distinct":
        _check_call(first, has_windows=has_windows)
    elif not isinstance(first, Name | Wildcard | Regex):
        raise StatementError(f"expected field argument in {function}()")
    _check_number(call)


def _check_number(call: Call) -> None:
    """Check the number after the field of a function that reduces windows."""
    function = call.function
    if function == "percentile":
        percent = call.arguments[1]
        if not isinstance(percent, Number) or percent.value > _MAX_PERCENT:
            raise StatementError("expected float argument from 0 to 100 in percentile()")
    if function == "integral" and len(call.arguments) > 1:
        unit = call.arguments[1]
        if not isinstance(unit, Duration) or unit.ns <= 0:
            raise StatementError("second argument to integral must be a duration above 0")


def _check_picker(call: Call) -> None:
    function, (first, *others) = call.function, call.arguments
    if not isinstance(first, Name):
        raise StatementError(f"expected field argument in {function}()")
    if function == "distinct":
        return
    *tags, count = others
    if not isinstance(count, Number) or not 1 <= count.value <= _MAX_PICKED:
        raise StatementError(
            f"the last argument of {function}() must be an integer from 1 to {_MAX_PICKED:,}"
        )
    if count.value != int(count.value):
        raise StatementError(f"the last argument of {function}() must be an integer")
    if not all(isinstance(tag, Name) for tag in tags):
        raise StatementError(f"only tags are allowed between field and number in {function}()")


def _check_transformation(call: Call, *, has_windows: bool) -> None:
    function, first = call.function, call.arguments[0]
    if isinstance(first, Call):
        _check_inner(function, first, has_windows=has_windows)
    elif has_windows:
        raise StatementError(f"aggregate function required inside the call to {function}")
    elif not isinstance(first, Name | Wildcard | Regex):
        raise StatementError(f"expected field argument in {function}()")
    transformation = TRANSFORMATIONS[function]
    second = call.arguments[1] if len(call.arguments) > 1 else None
    if transformation.takes_duration:
        if second is not None and not (isinstance(second, Duration) and second.ns > 0):
            raise StatementError(f"second argument to {function} must be a duration above 0")
    elif transformation.argument is None:
        value = second.value if isinstance(second, Number) else 0
        if not 1 < value <= _MAX_AVERAGED or value != int(value):
            raise StatementError(
                f"second argument for {function} must be an integer from 2 to {_MAX_AVERAGED:,}"
            )
    elif second is not None:
        raise StatementError(f"invalid number of arguments for {function}, expected 1, got 2")


def _check_inner(function: str, call: Call, *, has_windows: bool) -> None:
    """Check a function inside a transformation."""
    if not has_windows:
        raise StatementError(f"{function} aggregate requires a GROUP BY interval")
    if call.function in PICKERS:
        raise StatementError(f"{call.function}() is not supported inside {function}()")
    _check_call(call, has_windows=True)


def calls_of(expression: Expression) -> Iterator[Call]:
    """Yield the functions of an expression that are in no other.

    Raises:
        StatementError: the expression is none of a column.
    """
    if isinstance(expression, Call):
        yield expression
    elif isinstance(expression, Binary) and expression.operator in OPERATORS:
        for side in (expression.left, expression.right):
            if isinstance(side, Wildcard | Regex):
                raise StatementError("Arithmetic takes fields, functions and numbers by name.")
            yield from calls_of(side)
    elif not isinstance(expression, Name | Number | Wildcard | Regex):
        raise StatementError("A column is a field, a function, a number, or arithmetic of them.")


def reduction_of(call: Call) -> Reduction:
    """Return what a call that is no transformation reduces, and how."""
    first = call.arguments[0]
    if isinstance(first, Call):
        argument = first.arguments[0]
        name = argument.text if isinstance(argument, Name) else ""
        return Reduction("count distinct", name, count_distinct)
    name = first.text if isinstance(first, Name) else ""
    if call.function == "integral":
        unit = call.arguments[1] if len(call.arguments) > 1 else None
        unit_ns = unit.ns if isinstance(unit, Duration) else NS_PER_SECOND
        return Reduction(f"integral {unit_ns}", name, partial(integral, unit_ns=unit_ns))
    if call.function == "percentile":
        percent = call.arguments[1]
        value = percent.value if isinstance(percent, Number) else 0.0
        return Reduction(f"percentile {value}", name, partial(percentile, percent=value))
    return Reduction(call.function, name, REDUCERS[call.function])


def transformation_of(call: Call) -> tuple[Transformation, float]:
    """Return the transformation of a call with its number."""
    transformation = TRANSFORMATIONS[call.function]
    if len(call.arguments) == 1:
        return transformation, transformation.argument or 0.0
    argument = call.arguments[1]
    if isinstance(argument, Duration):
        return transformation, float(argument.ns)
    return transformation, argument.value if isinstance(argument, Number) else 0.0
