"""Aggregates of many groups by step, as arrays."""

from collections.abc import Callable, Generator, Mapping, Sequence

import numpy as np

from alerting.evaluation.firing_steps import Floats
from alerting.evaluation.rule_query import rule_query
from alerting.rule_request import RuleRequest
from alerting.states import Operator
from timeseries.columns import SeriesColumns
from timeseries.store import Store

PARTS = 10
"""A range is read in so many parts, to show how far it is."""
OPERATIONS: Mapping[Operator, Callable[[Floats, Floats], Floats]] = {
    Operator.PLUS: np.add,
    Operator.MINUS: np.subtract,
    Operator.TIMES: np.multiply,
    Operator.DIVIDED_BY: np.divide,
}


class StepTable:
    """Values of the fields of a rule by group and step; NaN where there is none."""

    def __init__(self, fields: Sequence[str], starts: range) -> None:
        self._starts = starts
        self.groups: dict[tuple[str, ...], int] = {}
        self.values = {field: np.full((0, len(starts)), np.nan) for field in fields}

    def add(self, columns: SeriesColumns) -> None:
        """Add the values of a part of the steps."""
        numbers = [self.groups.setdefault(group, len(self.groups)) for group in columns.groups]
        rows = np.repeat(np.array(numbers, dtype=np.int64), columns.lengths)
        for name, values in self.values.items():
            missing = np.full((len(self.groups) - len(values), len(self._starts)), np.nan)
            self.values[name] = np.concatenate([values, missing]) if missing.size else values
        steps = (columns.times_ns - self._starts[0]) // self._starts.step
        self.values[columns.field][rows, steps] = columns.values

    def combined(self, request: RuleRequest) -> Floats:
        """Return the values of a rule: the arithmetic of two fields is that of their aggregates."""
        if not request.operator:
            return self.values[request.field]
        with np.errstate(divide="ignore", invalid="ignore"):
            return OPERATIONS[Operator(request.operator)](
                self.values[request.field], self.values[request.other_field]
            )


def read_steps(
    store: Store, request: RuleRequest, starts: range, *, tenants: tuple[str, ...] | None
) -> Generator[None, None, StepTable]:
    """Return the aggregates of a rule's fields over each step; it yields before each part."""
    table = StepTable(tuple(filter(None, (request.field, request.other_field))), starts)
    for number in range(PARTS):
        first, last = (len(starts) * index // PARTS for index in (number, number + 1))
        yield
        if first == last:
            continue
        part = starts[first:last]
        query = rule_query(
            request,
            start_ns=part[0],
            end_ns=part[-1] + starts.step,
            tenants=tenants,
            step_ns=starts.step,
        )
        for columns in store.query_columns(query):
            table.add(columns)
    return table


def rolling_sums(values: Floats, window: int) -> Floats:
    """Return the sums of the last `window` columns at each one."""
    sums = np.cumsum(values, axis=1)
    sums[:, window:] -= sums[:, :-window].copy()
    return sums
