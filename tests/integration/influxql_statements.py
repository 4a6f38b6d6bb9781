"""Random statements in InfluxQL, and the samples that they are about.

Left out is what InfluxDB 1.6 calculates otherwise than documented: percentiles of windows with too
few samples, the mode of values that are equally often, the standard deviation of single samples
below other functions, integers between windows, which series of SLIMIT lack a tag, and the last
window of `integral` over several series.
"""

import random
from collections.abc import Sequence

from timeseries.points import Point

MEASUREMENTS = ("cpu", "disk")
FIELDS = ("usage", "temperature")
HOSTS, REGIONS = ("a1", "a2", "b1"), ("east", "west")
INTERVAL_SECONDS = 10
_REDUCERS = "mean sum count min max first last median spread stddev"
REDUCERS = (*_REDUCERS.split(), "percentile", "distinct")
_TRANSFORMATIONS = (
    "difference non_negative_difference cumulative_sum derivative non_negative_derivative elapsed"
)
TRANSFORMATIONS = (*_TRANSFORMATIONS.split(), "moving_average")
SECOND_NS = 1_000_000_000


def points(start_seconds: int, seconds: int) -> list[Point]:
    """Return gauges with gaps: some points lack a field, and some series a tag."""
    chance = random.Random(11)  # noqa: S311 - not for secrets
    listed: list[Point] = []
    for measurement in MEASUREMENTS:
        for at_host, host in enumerate(HOSTS):
            for region in REGIONS:
                tags = {"host": host} | ({"region": region} if host != "b1" else {"disk": region})
                at = start_seconds + at_host
                while at < start_seconds + seconds:
                    fields = {
                        name: chance.randrange(400) / 4 for name in FIELDS if chance.random() < 0.8
                    }
                    if fields:
                        # Samples at the same time have an order that is not specified.
                        shift_ns = (len(listed) % 997) * 1_000_000
                        listed.append(Point(measurement, tags, fields, at * SECOND_NS + shift_ns))
                    at += INTERVAL_SECONDS * (1 if chance.random() < 0.9 else 12)
    return listed


class Statements:
    """Makes valid statements from a source of chance."""

    def __init__(self, chance: random.Random, start_seconds: int, seconds: int) -> None:
        self._chance = chance
        self._start_seconds = start_seconds
        self._seconds = seconds

    def statement(self) -> str:
        """Return a SELECT, or one of the SHOW statements of clients."""
        kind = self._chance.random()
        if kind < 0.1:
            return self._show()
        if kind < 0.25:
            return self._raw()
        if kind < 0.4:
            return self._picked()
        return self._of_subquery() if kind < 0.6 else self._aggregate()

    def _picked(self) -> str:
        field, count = self._chance.choice(FIELDS), self._chance.choice((1, 2, 5))
        tag = self._chance.choice(("", "host, ", "host, region, "))
        function = self._chance.choice(
            (f"top({field}, {tag}{count})", f"bottom({field}, {tag}{count})", f"distinct({field})")
        )
        groups = [f"time({self._interval()})"] if self._chance.random() < 0.6 else []
        groups += self._chance.choice(([], ["region"]))
        parts = [f"SELECT {function}", self._from(), self._where()]
        return " ".join([*parts, *([f"GROUP BY {', '.join(groups)}"] if groups else [])])

    def _of_subquery(self) -> str:
        inner_groups = self._chance.choice(
            (["host"], ["host", f"time({self._interval()})"], ["*", "time(30s)"], ["time(10s)"])
        )
        inner = f'{self._reduced("usage", but="stddev")} AS "value"'
        source = (
            f"(SELECT {inner} {self._from()} {self._where()} GROUP BY {', '.join(inner_groups)})"
        )
        # Rows at the same time have an order that is not specified.
        raw = () if "host" in inner_groups or "*" in inner_groups else ('"value"',)
        outer = self._chance.choice(('mean("value")', 'max("value")', 'sum("value")', *raw))
        groups = self._chance.choice(([], ["host"])) if "host" in inner_groups else []
        if "(" in outer and self._chance.random() < 0.5:
            groups = [*groups, "time(5m)"]
        times = f"time >= {self._start_seconds}s AND time < {self._start_seconds + self._seconds}s"
        parts = [f"SELECT {outer}", f"FROM {source}", f"WHERE {times}"]
        return " ".join([*parts, *([f"GROUP BY {', '.join(groups)}"] if groups else [])])

    def _aggregate(self) -> str:
        has_windows = self._chance.random() < 0.8
        columns = [
            self._column(has_windows=has_windows) for _ in range(self._chance.choice((1, 1, 2, 3)))
        ]
        groups = [f"time({self._interval()})"] if has_windows else []
        groups += self._chance.choice(([], ["host"], ['"region"::tag', "host"], ["*"], ["/^re/"]))
        parts = [f"SELECT {', '.join(columns)}", self._from(), self._where()]
        parts += [f"GROUP BY {', '.join(groups)}"] if groups else []
        if has_windows:
            fills = ("", "", "none", "null", "0", "previous", "linear", "-3")
            fill = self._chance.choice(fills)
            fill = "" if fill == "linear" and "count" in " ".join(columns) else fill
            parts += [f"fill({fill})"] if fill else []
        # Of several functions, InfluxDB 1.6 limits the rows of each.
        page = self._page(groups) if len(columns) == 1 else []
        return " ".join([*parts, *page])

    def _raw(self) -> str:
        columns = self._chance.choice(
            ("*", "usage", "usage, temperature", "usage, host", "usage / temperature AS ratio")
        )
        parts = [f"SELECT {columns}", self._from(), self._where()]
        groups = self._chance.choice(([], ["host"], ["*"]))
        parts += [f"GROUP BY {', '.join(groups)}"] if groups else []
        return " ".join([*parts, *self._page(groups)])

    def _show(self) -> str:
        return self._chance.choice(
            (
                "SHOW MEASUREMENTS",
                "SHOW MEASUREMENTS WITH MEASUREMENT =~ /^d/ LIMIT 5",
                "SHOW FIELD KEYS FROM cpu",
                'SHOW TAG KEYS FROM "autogen"."cpu"',
                'SHOW TAG VALUES FROM cpu WITH KEY = "host"',
                "SHOW TAG VALUES WITH KEY IN (host, region) WHERE host = 'a1'",
                "SHOW TAG VALUES FROM disk WITH KEY !~ /host/ LIMIT 2 OFFSET 1",
            )
        )

    def _column(self, *, has_windows: bool) -> str:
        field = self._chance.choice(FIELDS)
        kind = self._chance.random()
        if has_windows and kind < 0.3:
            return self._transformed(self._reduced(field, but="stddev"))
        if not has_windows and kind < 0.2:
            return self._transformed(f'"{field}"')
        if kind > 0.85:
            return f"{self._reduced(field)} {self._chance.choice('+-*/')} 8"
        if kind > 0.75:
            return f"{self._reduced(field)} * {self._reduced(self._chance.choice(FIELDS))}"
        return self._reduced(field)

    def _reduced(self, field: str, *, but: str = "") -> str:
        function = self._chance.choice([name for name in REDUCERS if name != but])
        if function == "percentile":
            return f'percentile("{field}", {self._chance.choice((50, 95, 99.5))})'
        if function == "distinct":
            return f'count(distinct("{field}"))'
        return f'{function}("{field}")'

    def _transformed(self, inner: str) -> str:
        function = self._chance.choice(TRANSFORMATIONS)
        if "derivative" in function or function == "elapsed":
            return f"{function}({inner}, {self._chance.choice(('1s', '10s', '1m'))})"
        return f"{function}({inner}{', 2' if function == 'moving_average' else ''})"

    def _from(self) -> str:
        return self._chance.choice(
            ('FROM "cpu"', "FROM autogen.disk", "FROM cpu, disk", "FROM /./")
        )

    def _interval(self) -> str:
        return self._chance.choice(("30s", "1m", "100s", "5m", "1m, 7s"))

    def _where(self) -> str:
        start = self._start_seconds + self._chance.randrange(self._seconds // 2)
        end = start + self._chance.randrange(60, self._seconds // 2)
        times = f"time >= {start * 1000}ms AND time <= {end * 1000}ms"
        condition = self._condition()
        return f"WHERE ({condition}) AND {times}" if condition else f"WHERE {times}"

    def _condition(self) -> str:
        leaves = (
            "host = 'a1'",
            "\"host\"::tag != 'a1'",
            "host =~ /^a/",
            "host !~ /1$/",
            "region = 'east'",
            "region != ''",
            "disk = ''",
            "region =~ /(?i)^(EAST|north)$/",
            "usage > 40",
            '"temperature"::field <= 50.5',
            "usage != 12.25",
            "-1 < usage",
        )
        first, second, third = (self._chance.choice(leaves) for _ in range(3))
        return self._chance.choice(
            (
                "",
                "",
                first,
                f"{first} AND {second}",
                f"{first} OR {second}",
                f"{first} AND ({second} OR {third})",
                f"host = 'a1' OR host = 'b1' AND {third}",
            )
        )

    def _page(self, groups: Sequence[str]) -> list[str]:
        parts = []
        if self._chance.random() < 0.2:
            parts.append("ORDER BY time DESC")
        if self._chance.random() < 0.2:
            parts.append(f"LIMIT {self._chance.randrange(1, 6)} OFFSET {self._chance.randrange(3)}")
        # `host` alone is a tag of every series.
        have_all_tags = not {*groups} & {"*", "/^re/", '"region"::tag'}
        if self._chance.random() < 0.15 and have_all_tags:
            parts.append("SLIMIT 2")
        return parts
