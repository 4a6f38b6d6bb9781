"""Random expressions in PromQL, and the samples that they are about."""

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

Key = tuple[str, tuple[tuple[str, str], ...]]
INTERVAL_MS = 15_000
_ROLLUPS = (
    "rate increase delta irate idelta deriv changes resets avg_over_time sum_over_time "
    "min_over_time max_over_time count_over_time last_over_time present_over_time "
    "stddev_over_time stdvar_over_time"
)
_ELEMENTWISE = "abs ceil floor exp sqrt ln log2 log10 sgn round timestamp minute day_of_week"
_AGGREGATIONS = "sum avg min max count group stddev stdvar"
ROLLUPS, ELEMENTWISE, AGGREGATIONS = (
    words.split() for words in (_ROLLUPS, _ELEMENTWISE, _AGGREGATIONS)
)
HOSTS, MODES = ("a", "b", "c"), ("user", "idle")


def samples(start_ms: int, end_ms: int) -> dict[Key, list[tuple[int, float]]]:
    """Return samples of counters that restart, gauges with gaps, and a histogram."""
    chance = random.Random(7)  # noqa: S311 - not for secrets
    series: dict[Key, list[tuple[int, float]]] = {}
    for host in HOSTS:
        for mode in MODES:
            labels = (("host", host), ("mode", mode))
            series["cpu_seconds_total", labels] = _counter(chance, start_ms, end_ms)
            series["load", labels] = _gauge(chance, start_ms, end_ms)
        series["memory_bytes", (("host", host), ("rack", f"r{host}1"))] = _gauge(
            chance, start_ms, end_ms
        )
        series["limit", (("host", host),)] = _gauge(chance, start_ms, end_ms)
        for bound in ("0.1", "0.5", "1", "5", "+Inf"):
            key = ("latency_bucket", (("host", host), ("le", bound)))
            series[key] = _bucket(start_ms, end_ms, ("0.1", "0.5", "1", "5", "+Inf").index(bound))
    return series


def _counter(chance: random.Random, start_ms: int, end_ms: int) -> list[tuple[int, float]]:
    value, values = chance.uniform(0, 50), []
    shift_ms = chance.randrange(INTERVAL_MS)
    for at_ms in range(start_ms + shift_ms, end_ms, INTERVAL_MS):
        value = 0.0 if chance.random() < 0.01 else value + chance.uniform(0, 20)
        values.append((at_ms, value))
    return values


def _gauge(chance: random.Random, start_ms: int, end_ms: int) -> list[tuple[int, float]]:
    values, at_ms = [], start_ms + chance.randrange(INTERVAL_MS)
    while at_ms < end_ms:
        values.append((at_ms, round(chance.uniform(-100, 1000), 3)))
        # One of many gaps is longer than a series without samples is present.
        at_ms += INTERVAL_MS + chance.randrange(900) * (chance.random() < 0.2)
        at_ms += 400_000 * (chance.random() < 0.005)
    return values


def _bucket(start_ms: int, end_ms: int, index: int) -> list[tuple[int, float]]:
    steps = range(start_ms, end_ms, INTERVAL_MS)
    return [
        (at_ms, float(number * (index + 1) + number * number % 7))
        for number, at_ms in enumerate(steps)
    ]


class Expressions:
    """Makes valid expressions from a source of chance."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def vector(self, *, depth: int) -> str:
        """Return an instant vector."""
        if depth == 0:
            return self._selector()
        kinds = (
            [self._rollup] * 5
            + [self._aggregation] * 4
            + [self._selected] * 2
            + [self._elementwise] * 2
            + [self._with_number] * 3
            + [self._pair] * 4
            + [self._set] * 2
            + [self._special] * 3
        )
        return self._pick(kinds)(depth - 1)

    def _pick(self, options: Sequence[T]) -> T:
        return self._chance.choice(options)

    def _selector(self) -> str:
        name = self._pick(["cpu_seconds_total", "load", "memory_bytes", "limit"])
        matcher = self._pick(
            ['{host="a"}', '{host!="a"}', '{host=~"a|b"}', '{host!~"b.*"}', "", "", ""]
        )
        offset = self._pick([" offset 2m", " offset 33s", "", "", "", ""])
        return f"{name}{matcher}{offset}"

    def _range(self, depth: int) -> str:
        length = self._pick(["90s", "5m", "10m"])
        if depth > 0 and self._chance.random() < 0.2:
            steps = self._pick(["5m:30s", "10m:1m", "10m:"])
            return f"{self._parenthesized(depth)}[{steps}]"
        selector, _, offset = self._selector().partition(" ")
        return f"{selector}[{length}] {offset}".strip()

    def _parenthesized(self, depth: int) -> str:
        return f"({self.vector(depth=depth)})"

    def _rollup(self, depth: int) -> str:
        argument = self._range(depth)
        if self._chance.random() < 0.1:
            return f"quantile_over_time({self._pick(['0.1', '0.5', '0.99', '1.1'])}, {argument})"
        if self._chance.random() < 0.1:
            return f"predict_linear({argument}, {self._pick(['60', '3600'])})"
        return f"{self._pick(ROLLUPS)}({argument})"

    def _aggregation(self, depth: int) -> str:
        return f"{self._pick(AGGREGATIONS)}{self._grouping()} ({self.vector(depth=depth)})"

    def _grouping(self) -> str:
        return self._pick(
            [
                "",
                " by (host)",
                " by (mode)",
                " by (host, mode)",
                " without (host)",
                " without (mode)",
            ]
        )

    def _selected(self, depth: int) -> str:
        name, number = self._pick(
            [("topk", "2"), ("bottomk", "1"), ("quantile", "0.3"), ("quantile", "0.9")]
        )
        return f"{name}{self._grouping()} ({number}, {self.vector(depth=depth)})"

    def _elementwise(self, depth: int) -> str:
        inner = self.vector(depth=depth)
        return self._pick(
            [
                f"{self._pick(ELEMENTWISE)}({inner})",
                f"clamp({inner}, 10, 500)",
                f"clamp_min({inner}, 20)",
                f"clamp_max({inner}, 300)",
                f"round({inner}, 5)",
                f"-{self._selector()}",
            ]
        )

    def _with_number(self, depth: int) -> str:
        operator = self._pick(
            ["+", "-", "*", "/", "%", "^", ">", "<", ">=", "!=", "> bool", "== bool"]
        )
        number = self._pick(["2", "100", "0.5", "time()", 'scalar(limit{host="a"})'])
        parts = [self._parenthesized(depth), number]
        if operator != "^" and self._chance.random() < 0.3:
            parts.reverse()
        return f"{parts[0]} {operator} {parts[1]}"

    def _pair(self, depth: int) -> str:
        operator = self._pick(["+", "-", "*", "/", "%", ">", "<=", "> bool"])
        left, right = self._parenthesized(depth), self._parenthesized(depth)
        return self._pick(
            [
                f"{left} {operator} on (host, mode) {right}",
                f"sum by (host) {left} {operator} max by (host) {right}",
                f"sum by (host, mode) {left} {operator} on (host) group_left avg by (host) {right}",
                f"sum by (host) {left} {operator} on (host) group_right {right}",
                f"load {operator} on (host) group_left (rack) memory_bytes",
                f"load {operator} ignoring (mode) group_left limit",
            ]
        )

    def _set(self, depth: int) -> str:
        operator = self._pick(["and", "or", "unless"])
        on = self._pick(["", " on (host)", " ignoring (mode)"])
        return f"{self._parenthesized(depth)} {operator}{on} {self._parenthesized(depth)}"

    def _special(self, depth: int) -> str:
        inner = self.vector(depth=depth)
        return self._pick(
            [
                "histogram_quantile(0.9, sum by (le) (rate(latency_bucket[5m])))",
                "histogram_quantile(0.5, rate(latency_bucket[5m]))",
                f'label_replace({inner}, "zone", "z-$1", "host", "(.).*")',
                f'label_join({inner}, "both", "-", "host", "mode")',
                f"absent({inner})",
                'absent(nothing{host="x", mode=~"y"})',
                'absent_over_time(load{host="c"}[90s])',
                f"vector(1) + {self._pick(['time()', '3'])}",
                f"sort_desc({inner})",
                'count_values("v", round(load, 500))',
            ]
        )
