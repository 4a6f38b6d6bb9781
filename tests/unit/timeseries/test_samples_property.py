"""Samples in any order, twice, late, sealed, merged and over restarts are read as in a model."""

import math
import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.unit.timeseries.rollup_samples import HOUR_NS, MINUTE_NS
from tests.unit.timeseries.sample_model import SampleModel, identity_of, is_same_value
from timeseries.duckdb.hot import writer
from timeseries.duckdb.query import units
from timeseries.duckdb.query.rollup_sql import QUANTILES
from timeseries.duckdb.store import DuckDBStore
from timeseries.points import Batch, Point
from timeseries.sketch import ACCURACY_RATIO
from timeseries.store import DAY_NS, Aggregate, LatestQuery, RangeQuery, ScanQuery, Series, write

START_NS = 19_675 * DAY_NS
SENDERS = [("acme", "a1"), ("acme", "a2"), ("globex", "g1")]
# A declared field goes to the table that tenants share, with another one to the tenant's own.
FIELDS = ("busy", "level", "power_watts", "reading")
NUMBERS = tuple(name for name in FIELDS if name != "busy")
STEPS = (None, 10 * 10**9, 5 * MINUTE_NS, HOUR_NS, DAY_NS)
EVERYTHING = ScanQuery(
    measurement="gpu", start_ns=START_NS - DAY_NS, end_ns=START_NS + 9 * DAY_NS, tenants=None
)

floats = st.sampled_from([0.0, -0.0, 0.1, 250.0, -3.25, 1e300, 1 / 3])
fields = st.fixed_dictionaries(
    {},
    optional={
        "power_watts": floats,
        "reading": floats,
        "level": st.integers(-3, 3),
        "busy": st.booleans(),
    },
).filter(bool)
# Few instants, so that most have several writes: of two days, in two hours of each.
times = st.builds(
    lambda day, hour, step: START_NS + day * DAY_NS + hour * HOUR_NS + step * 100 * 10**9,
    st.integers(0, 1),
    st.integers(0, 1),
    st.integers(0, 4),
)
points = st.builds(
    lambda gpu, values, time_ns: Point("gpu", {"gpu": gpu}, values, time_ns),
    st.sampled_from("01"),
    fields,
    times,
)
batches = st.lists(points, min_size=1, max_size=12)
senders = st.sampled_from(SENDERS)


class Samples(RuleBasedStateMachine):
    """A store in files beside its model."""

    @initialize()
    def open(self) -> None:
        self.folder = TemporaryDirectory(prefix="vedette-samples-")
        self.generation = 0
        self.model = SampleModel()
        self.sent: list[tuple[list[Point], tuple[str, str]]] = []
        self.store = DuckDBStore(self.path)

    @property
    def path(self) -> Path:
        return Path(self.folder.name) / str(self.generation) / "samples.duckdb"

    @rule(batch=batches, sender=senders, is_direct=st.booleans())
    def write(self, batch: list[Point], sender: tuple[str, str], *, is_direct: bool) -> None:
        writer.MIN_DIRECT_POINTS = 1 if is_direct else 4_000
        identity = identity_of(*sender)
        assert write(self.store, batch, identity=identity) == []
        self.model.write(batch, identity)
        self.sent.append((batch, sender))

    @rule(batches=st.lists(st.tuples(batches, senders), min_size=2, max_size=4))
    def write_together(self, batches: list[tuple[list[Point], tuple[str, str]]]) -> None:
        """Without waiting for each, so that they may share a commit."""
        futures = [
            self.store.submit(Batch.of(batch), identity=identity_of(*sender))
            for batch, sender in batches
        ]
        assert [future.result(timeout=60) for future in futures] == [[]] * len(batches)
        for batch, sender in batches:
            self.model.write(batch, identity_of(*sender))

    @precondition(lambda self: self.sent)
    @rule(at=st.integers(min_value=0))
    def write_twice(self, at: int) -> None:
        batch, sender = self.sent[at % len(self.sent)]
        self.write(batch, sender, is_direct=False)

    @rule(hours=st.sampled_from([2, 3, 25, 27, 40, 100]))
    def maintain(self, hours: int) -> None:
        self.store.maintain(now_ns=START_NS + hours * HOUR_NS)

    @rule(is_killed=st.booleans())
    def restart(self, *, is_killed: bool) -> None:
        """Open it again; after a kill, from what was in its files when that happened."""
        before = self.path.parent
        if is_killed:
            self.generation += 1
            shutil.copytree(before, self.path.parent)
        self.store.close()
        self.store = DuckDBStore(self.path)

    @rule(
        aggregate=st.sampled_from(list(Aggregate)),
        step_ns=st.sampled_from(STEPS),
        hours=st.tuples(st.integers(0, 25), st.integers(1, 30)),
        tenants=st.sampled_from([None, ("acme",), ("globex",)]),
        group_by=st.sampled_from([(), ("appliance",), ("tenant", "appliance", "gpu")]),
    )
    def read_range(self, aggregate, step_ns, hours, tenants, group_by) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001
        if aggregate is Aggregate.LAST and len(group_by) < 3:
            group_by = ("tenant", "appliance", "gpu")  # one series has one last value
        query = RangeQuery(
            measurement="gpu",
            fields=NUMBERS,
            start_ns=START_NS + hours[0] * HOUR_NS,
            end_ns=START_NS + sum(hours) * HOUR_NS,
            aggregate=aggregate,
            step_ns=step_ns,
            tenants=tenants,
            group_by=group_by,
        )
        assert_same(self.store.query_range(query), self.model.query_range(query), aggregate)

    @invariant()
    def scans(self) -> None:
        if not hasattr(self, "store"):
            return
        for tenants in (None, ("acme",)):
            query = replace(EVERYTHING, tenants=tenants)
            scanned = sorted(
                (point.time_ns, tuple(sorted(point.tags.items())), point.fields)
                for batch in self.store.scan(query)
                for point in batch.points()
            )
            expected = self.model.scan(query)
            assert [row[:2] for row in scanned] == [row[:2] for row in expected]
            for (*_, fields), (*_, wanted) in zip(scanned, expected, strict=True):
                assert fields.keys() == wanted.keys()
                assert all(is_same_value(fields[name], wanted[name]) for name in wanted)
            assert self.store.extent(query) == self.model.extent(query)

    @invariant()
    def latest(self) -> None:
        if not hasattr(self, "store"):
            return
        query = LatestQuery(
            measurement="gpu",
            fields=FIELDS,
            since_ns=START_NS,
            tenants=("acme",),
            group_by=("appliance", "gpu"),
        )
        assert self.store.latest(query) == self.model.latest(query)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            self.folder.cleanup()


def assert_same(actual: list[Series], expected: list[Series], aggregate: Aggregate) -> None:
    def places(series: list[Series]) -> list[object]:
        return [(item.field, item.tags, item.times_ns) for item in series]

    assert places(actual) == places(expected)
    for item, other in zip(actual, expected, strict=True):
        for value, wanted in zip(item.values, other.values, strict=True):
            relative = ACCURACY_RATIO * 1.01 if aggregate in QUANTILES else 1e-9
            assert math.isclose(value, wanted, rel_tol=relative, abs_tol=1e-9), (item, other)


def run(monkeypatch: pytest.MonkeyPatch, *, examples: int, steps: int) -> None:
    monkeypatch.setattr(units, "MIN_ROWS", 1)
    monkeypatch.setattr(writer, "MIN_DIRECT_POINTS", writer.MIN_DIRECT_POINTS)
    run_state_machine_as_test(
        Samples,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            phases=[Phase.explicit, Phase.reuse, Phase.generate],  # each step may take a second
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_samples_read_as_in_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, examples=3, steps=8)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_many_samples_read_as_in_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, examples=150, steps=40)
