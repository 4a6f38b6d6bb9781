"""Evaluation of a syntax tree over a grid of times, node by node, all series and steps at once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import promql_parser as grammar

from timeseries.promql import aggregation, functions, operators
from timeseries.promql.range_functions import (
    RANGE_FUNCTIONS,
    over_windows,
    predict_linear,
    quantile_over_time,
)
from timeseries.promql.selection import Matchers, Source
from timeseries.promql.syntax import (
    SETS,
    EvaluationError,
    milliseconds,
    operator_of,
    without_parentheses,
)
from timeseries.promql.values import (
    LOOKBACK_MS,
    NAME_LABEL,
    Grid,
    Labels,
    Samples,
    Scalar,
    Vector,
    check_cells,
)
from timeseries.promql.windows import Windows

DEFAULT_SUBQUERY_STEP_MS = 60_000
MAX_SUBQUERY_STEPS = 100_000

Value = Vector | Scalar | str


@dataclass(frozen=True, slots=True)
class Evaluation:
    """An evaluation of an expression, or of a subquery in it, over a grid."""

    source: Source
    grid: Grid

    def value(self, node: grammar.Expr) -> Value:
        """Return the value of an expression that is no range vector.

        Raises:
            EvaluationError: it can't be evaluated over these samples.
        """
        self.source.check()
        for kind, evaluate in _NODES.items():
            if isinstance(node, kind):
                return evaluate(self, node)
        raise EvaluationError("A range vector can be the argument of a function only.")

    def vector(self, node: grammar.Expr) -> Vector:
        """Return the value of an instant vector."""
        value = self.value(node)
        if not isinstance(value, Vector):
            raise EvaluationError(f"{node} is not an instant vector.")
        return value

    def scalar(self, node: grammar.Expr) -> Scalar:
        """Return the value of a scalar."""
        value = self.value(node)
        if not isinstance(value, np.ndarray):
            raise EvaluationError(f"{node} is not a scalar.")
        return value

    def windows(self, node: grammar.Expr) -> Windows:
        """Return the value of a range vector."""
        node = without_parentheses(node)
        if isinstance(node, grammar.MatrixSelector):
            range_ms = milliseconds(node.range)
            offset_ms = milliseconds(node.vector_selector.offset)
            samples = self.read(node.vector_selector, back_ms=range_ms)
        elif isinstance(node, grammar.SubqueryExpr):
            range_ms, offset_ms = milliseconds(node.range), milliseconds(node.offset)
            samples = self._subquery(node, range_ms=range_ms, offset_ms=offset_ms)
        else:
            raise EvaluationError(f"{node} is not a range vector.")
        check_cells(len(samples.labels), self.grid.steps)
        return Windows.of(
            samples, self.grid, range_ms=range_ms, offset_ms=offset_ms, check=self.source.check
        )

    def read(self, node: grammar.VectorSelector, *, back_ms: int) -> Samples:
        """Return the samples of a selector from so long before the first time on."""
        grid = self.grid.earlier(milliseconds(node.offset))
        return self.source.samples(
            matchers_of(node), start_ms=grid.start_ms - back_ms, end_ms=grid.end_ms
        )

    def _negated(self, node: grammar.UnaryExpr) -> Value:
        value = self.value(node.expr)
        if isinstance(value, Vector):
            return value.unnamed(-value.values)
        return -self.scalar(node.expr)

    def _selected(self, node: grammar.VectorSelector) -> Vector:
        samples = self.read(node, back_ms=LOOKBACK_MS)
        check_cells(len(samples.labels), self.grid.steps)
        index, is_present = samples.newest(self.grid.earlier(milliseconds(node.offset)))
        if not samples.labels:
            return Vector.empty(self.grid.steps)
        return Vector(samples.labels, samples.values[index], is_present)

    def _timestamps(self, node: grammar.Expr) -> Vector:
        """Return the times of the samples of a selector, or that of the evaluation."""
        selector = without_parentheses(node)
        if not isinstance(selector, grammar.VectorSelector):
            vector = self.vector(node)
            return vector.unnamed(np.broadcast_to(self._seconds, vector.values.shape))
        samples = self.read(selector, back_ms=LOOKBACK_MS)
        index, is_present = samples.newest(self.grid.earlier(milliseconds(selector.offset)))
        if not samples.labels:
            return Vector.empty(self.grid.steps)
        named = Vector(samples.labels, samples.values[index], is_present)
        return named.unnamed(samples.times_ms[index] / 1000)

    def _subquery(self, node: grammar.SubqueryExpr, *, range_ms: int, offset_ms: int) -> Samples:
        """Return the values of an expression at the steps of a subquery as samples."""
        step_ms = milliseconds(node.step) or DEFAULT_SUBQUERY_STEP_MS
        first_ms = self.grid.start_ms - offset_ms - range_ms
        start_ms = -(-first_ms // step_ms) * step_ms
        steps = max(0, (self.grid.end_ms - offset_ms - start_ms) // step_ms + 1)
        if steps > MAX_SUBQUERY_STEPS:
            raise EvaluationError(
                f"A subquery has {steps:,} steps, more than {MAX_SUBQUERY_STEPS:,}. "
                "Use a larger step in it."
            )
        grid = Grid(start_ms, step_ms, steps)
        vector = Evaluation(self.source, grid).vector(node.expr).compact()
        lengths = vector.is_present.sum(axis=1)
        times_ms = np.broadcast_to(grid.times_ms, vector.values.shape)
        return Samples(
            vector.labels,
            np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            times_ms[vector.is_present],
            vector.values[vector.is_present],
        )

    def _aggregated(self, node: grammar.AggregateExpr) -> Vector:
        name, vector = str(node.op), self.vector(node.expr).compact()
        modifier = node.modifier
        group_of = aggregation.grouping(
            modifier.labels if modifier is not None else (),
            is_without=modifier is not None and modifier.type == grammar.AggModifierType.Without,
        )
        if node.param is None:
            return aggregation.aggregated(name, vector, group_of)
        if name == "count_values":
            label = self.text(node.param)
            functions.check_label(label)
            return aggregation.count_values(vector, label, group_of)
        number = self.scalar(node.param)
        if name == "quantile":
            return aggregation.quantile(vector, number, group_of)
        result = aggregation.selected(name, vector, number, group_of)
        if self.grid.steps > 1:
            return result
        return functions.ordered(result.compact(), is_descending=name == "topk")

    def _binary(self, node: grammar.BinaryExpr) -> Value:
        operator, matching = str(node.op), operators.Matching.of(node.modifier)
        left, right = self.value(node.lhs), self.value(node.rhs)
        if isinstance(left, Vector) and isinstance(right, Vector):
            left, right = left.compact(), right.compact()
            if operator in SETS:
                return operators.of_sets(operator, left, right, matching)
            return operators.of_vectors(operator, left, right, matching)
        if isinstance(left, str) or isinstance(right, str):
            raise EvaluationError(f"The operator {operator} is not for strings.")
        if isinstance(left, Vector):
            is_left, vector, number = False, left, right
        elif isinstance(right, Vector):
            is_left, vector, number = True, right, left
        else:
            return operators.of_scalars(operator, left, right)
        assert isinstance(number, np.ndarray)  # noqa: S101 - as the cases above
        return operators.with_scalar(
            operator, vector, number, is_left=is_left, returns_bool=matching.returns_bool
        )

    def _called(self, node: grammar.Call) -> Value:
        name, arguments = node.func.name, list(node.args)
        if name in RANGE_FUNCTIONS:
            return over_windows(name, self.windows(arguments[0]))
        if name in functions.ELEMENTWISE:
            vector = self.vector(arguments[0])
            return vector.unnamed(functions.ELEMENTWISE[name](vector.values))
        if name in functions.CALENDAR:
            return self._calendar(functions.CALENDAR[name], arguments)
        return _CALLS[name](self, arguments)

    def _calendar(
        self, part: Callable[[np.ndarray], np.ndarray], arguments: Sequence[grammar.Expr]
    ) -> Vector:
        if not arguments:
            return _constant(part(self._seconds))
        vector = self.vector(arguments[0])
        values = np.where(vector.is_present, vector.values, np.nan)
        return vector.unnamed(part(values) if values.size else values)

    @property
    def _seconds(self) -> Scalar:
        return self.grid.times_ms / 1000

    def text(self, node: grammar.Expr) -> str:
        """Return the value of a string."""
        value = self.value(node)
        if not isinstance(value, str):
            raise EvaluationError(f"{node} is not a string.")
        return value

    def _rounded(self, arguments: Sequence[grammar.Expr]) -> Vector:
        vector = self.vector(arguments[0])
        nearest = self.scalar(arguments[1]) if len(arguments) > 1 else np.ones(self.grid.steps)
        return vector.unnamed(functions.rounded(vector.values, nearest))

    def _clamped(
        self, arguments: Sequence[grammar.Expr], *, has_low: bool, has_high: bool
    ) -> Vector:
        bounds = [self.scalar(argument) for argument in arguments[1:]]
        unbounded = np.full(self.grid.steps, np.inf)
        low = bounds[0] if has_low else -unbounded
        high = bounds[-1] if has_high else unbounded
        return functions.clamped(self.vector(arguments[0]), low, high)

    def _ordered(self, arguments: Sequence[grammar.Expr], *, is_descending: bool) -> Vector:
        vector = self.vector(arguments[0])
        if self.grid.steps > 1:
            return vector
        return functions.ordered(vector.compact(), is_descending=is_descending)

    def _absent(self, arguments: Sequence[grammar.Expr]) -> Vector:
        return functions.absent(self.vector(arguments[0]), absent_labels(arguments[0]))

    def _absent_over_time(self, arguments: Sequence[grammar.Expr]) -> Vector:
        vector = over_windows("present_over_time", self.windows(arguments[0]))
        return functions.absent(vector, absent_labels(arguments[0]))


def matchers_of(node: grammar.VectorSelector) -> Matchers:
    """Return the matchers of a selector, that of its name among them."""
    matchers = [
        (matcher.name, operator_of(matcher), matcher.value) for matcher in node.matchers.matchers
    ]
    named = [(NAME_LABEL, "=", node.name)] if node.name else []
    return tuple(named + matchers)


def absent_labels(node: grammar.Expr) -> Labels:
    """Return the labels of what is absent: those that its selector requires once."""
    selector = without_parentheses(node)
    if isinstance(selector, grammar.MatrixSelector):
        selector = selector.vector_selector
    if not isinstance(selector, grammar.VectorSelector):
        return {}
    conditions = [(label, sign) for label, sign, _ in matchers_of(selector)]
    names = [label for label, _ in conditions]
    return {
        label: text
        for label, operator, text in matchers_of(selector)
        if operator == "=" and label != NAME_LABEL and text and names.count(label) == 1
    }


def _constant(number: Scalar) -> Vector:
    return Vector([{}], number[None, :], np.ones((1, len(number)), dtype=bool))


_NODES: Mapping[type, Callable[[Evaluation, Any], Value]] = {
    grammar.NumberLiteral: lambda run, node: np.full(run.grid.steps, node.val),
    grammar.StringLiteral: lambda _, node: str(node.val),
    grammar.ParenExpr: lambda run, node: run.value(node.expr),
    grammar.UnaryExpr: Evaluation._negated,  # noqa: SLF001 - of this module, as those below
    grammar.VectorSelector: Evaluation._selected,  # noqa: SLF001
    grammar.AggregateExpr: Evaluation._aggregated,  # noqa: SLF001
    grammar.BinaryExpr: Evaluation._binary,  # noqa: SLF001
    grammar.Call: Evaluation._called,  # noqa: SLF001
}
_Call = Callable[[Evaluation, Sequence[grammar.Expr]], Value]
_CALLS: Mapping[str, _Call] = {
    "absent": Evaluation._absent,  # noqa: SLF001 - of this module
    "absent_over_time": Evaluation._absent_over_time,  # noqa: SLF001
    "clamp": partial(Evaluation._clamped, has_low=True, has_high=True),  # noqa: SLF001
    "clamp_max": partial(Evaluation._clamped, has_low=False, has_high=True),  # noqa: SLF001
    "clamp_min": partial(Evaluation._clamped, has_low=True, has_high=False),  # noqa: SLF001
    "histogram_quantile": lambda run, of: functions.histogram_quantile(
        run.scalar(of[0]), run.vector(of[1])
    ),
    "label_join": lambda run, of: functions.label_join(
        run.vector(of[0]),
        run.text(of[1]),
        run.text(of[2]),
        list(map(run.text, of[3:])),
    ),
    "label_replace": lambda run, of: functions.label_replace(
        run.vector(of[0]),
        *map(run.text, of[1:]),
    ),
    "pi": lambda run, _: np.full(run.grid.steps, np.pi),
    "predict_linear": lambda run, of: predict_linear(run.windows(of[0]), run.scalar(of[1])),
    "quantile_over_time": lambda run, of: quantile_over_time(run.windows(of[1]), run.scalar(of[0])),
    "round": Evaluation._rounded,  # noqa: SLF001
    "scalar": lambda run, of: functions.scalar_of(run.vector(of[0])),
    "sort": partial(Evaluation._ordered, is_descending=False),  # noqa: SLF001
    "sort_desc": partial(Evaluation._ordered, is_descending=True),  # noqa: SLF001
    "time": lambda run, _: run._seconds,  # noqa: SLF001
    "timestamp": lambda run, of: run._timestamps(of[0]),  # noqa: SLF001
    "vector": lambda run, of: _constant(run.scalar(of[0])),
}
