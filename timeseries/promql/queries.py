"""Queries in PromQL: of an instant, and of a range of steps."""

from dataclasses import dataclass

import numpy as np
import promql_parser as grammar

from timeseries.promql.evaluation import Evaluation, Value, matchers_of
from timeseries.promql.selection import Matchers, Source
from timeseries.promql.syntax import PromQLError, parse, without_parentheses
from timeseries.promql.values import Grid, Samples, Vector

MAX_STEPS = 11_000


@dataclass(frozen=True, slots=True)
class Answer:
    """The value of an expression: a vector, a scalar, a string, or the samples of a range."""

    value: Value | Samples
    grid: Grid


def query_instant(source: Source, text: str, *, at_ms: int) -> Answer:
    """Return the value of an expression at an instant.

    Raises:
        PromQLError: the expression is invalid, or not supported.
        EvaluationError: it can't be evaluated over these samples.
    """
    tree = without_parentheses(parse(text))
    evaluation = Evaluation(source, Grid(at_ms, 0, 1))
    with np.errstate(all="ignore"):
        if isinstance(tree, grammar.MatrixSelector | grammar.SubqueryExpr):
            return Answer(_present_samples(evaluation, tree), evaluation.grid)
        return Answer(_compact(evaluation.value(tree)), evaluation.grid)


def query_range(source: Source, text: str, grid: Grid) -> Answer:
    """Return the value of an expression at each step.

    Raises:
        PromQLError: the expression is invalid or not supported, or there are too many steps.
        EvaluationError: it can't be evaluated over these samples.
    """
    if grid.steps > MAX_STEPS:
        raise PromQLError(
            f"The query has {grid.steps:,} steps, more than {MAX_STEPS:,}. Use a larger step."
        )
    tree = without_parentheses(parse(text))
    if isinstance(tree, grammar.MatrixSelector | grammar.SubqueryExpr | grammar.StringLiteral):
        raise PromQLError("A query over a range needs an instant vector or a scalar.")
    with np.errstate(all="ignore"):
        return Answer(_compact(Evaluation(source, grid).value(tree)), grid)


def check_condition(text: str) -> None:
    """Check that a text is an instant vector or a scalar.

    Raises:
        PromQLError: it is not.
    """
    tree = without_parentheses(parse(text))
    if isinstance(tree, grammar.MatrixSelector | grammar.SubqueryExpr | grammar.StringLiteral):
        raise PromQLError("The condition of a rule is an instant vector or a scalar.")


def selector_matchers(text: str) -> Matchers:
    """Return the matchers of a text that is one selector, such as `up{job="a"}`.

    Raises:
        PromQLError: it is something else.
    """
    tree = parse(text)
    if not isinstance(tree, grammar.VectorSelector) or tree.offset is not None:
        raise PromQLError(f'{text!r} is not a selector such as up{{job="a"}}.')
    return matchers_of(tree)


def _compact(value: Value) -> Value:
    return value.compact() if isinstance(value, Vector) else value


def _present_samples(evaluation: Evaluation, node: grammar.Expr) -> Samples:
    """Return the samples in the only window of each series."""
    windows = evaluation.windows(node)
    samples, low, high = windows.samples, windows.low[:, 0], windows.high[:, 0]
    rows = np.flatnonzero(high > low).tolist()
    index = [np.arange(low[row], high[row]) for row in rows]
    flat = np.concatenate(index) if index else np.zeros(0, dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum((high - low)[rows])]).astype(np.int64)
    labels = [samples.labels[row] for row in rows]
    return Samples(labels, offsets, samples.times_ms[flat], samples.values[flat])
