"""Lists and newest values of the embedded store outlive the samples in the roll-ups."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.unit.timeseries.rollup_samples import (
    ACME,
    GLOBEX,
    HOUR_NS,
    MINUTE_NS,
    START_NS,
    gpu,
    write_all,
)
from timeseries.duckdb.store import DuckDBStore
from timeseries.points import Point
from timeseries.store import DAY_NS, Latest, LatestQuery, Resolution

LATER_NS = START_NS + DAY_NS
# START_NS is the first instant of an hour.
OLD_NS = START_NS + 7 * MINUTE_NS + 5


@pytest.fixture(scope="module")
def expired(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose old samples have expired: acme's of gpu 0, globex's, and all of `host`."""
    folder = tmp_path_factory.mktemp("expired")
    old = [
        gpu(OLD_NS, power_watts=1.0, busy=True, note="text"),
        Point("host", {"zone": "b"}, {"load": 2.0}, START_NS),
    ]
    with closing(DuckDBStore(folder / "samples.duckdb")) as store:
        write_all(store, old, ACME)
        write_all(store, [gpu(START_NS, gpu="7", theirs=1.0)], GLOBEX)
        write_all(store, [gpu(LATER_NS, gpu="1", power_watts=3.0, fresh=1.0)], ACME)
        store.maintain(now_ns=LATER_NS + DAY_NS)
        store.delete_before(START_NS + HOUR_NS)
    return folder


@pytest.fixture
def store(expired: Path, tmp_path: Path) -> Iterator[DuckDBStore]:
    """A copy of that store."""
    folder = shutil.copytree(expired, tmp_path / "store")
    with closing(DuckDBStore(folder / "samples.duckdb")) as store:
        yield store


def newest(store: DuckDBStore, *fields: str, until_ns: int | None = None) -> list[Latest]:
    query = LatestQuery(
        measurement="gpu",
        fields=fields,
        since_ns=START_NS,
        until_ns=until_ns,
        tenants=("acme",),
        group_by=("gpu",),
    )
    return store.latest(query)


def test_measurements_are_known_while_a_roll_up_has_them(store: DuckDBStore) -> None:
    assert store.measurements(tenants=("acme",)) == ["gpu", "host"]
    assert store.measurements(tenants=("globex",)) == ["gpu"]

    store.delete_before(LATER_NS, resolution=Resolution.FIVE_MINUTES)
    assert store.measurements(tenants=("acme",)) == ["gpu", "host"]
    store.delete_before(LATER_NS, resolution=Resolution.HOUR)
    assert store.measurements(tenants=("acme",)) == ["gpu"]
    assert store.measurements(tenants=("globex",)) == []


def test_fields_and_tags_are_known_while_a_roll_up_has_them(store: DuckDBStore) -> None:
    assert list(store.fields("gpu", tenants=("acme",))) == ["busy", "fresh", "power_watts"]
    assert store.fields("gpu", tenants=("globex",)) == {"theirs": "float"}
    assert store.tags("host", tenants=("acme",)) == ["tenant", "appliance", "zone"]

    store.delete_before(LATER_NS, resolution=Resolution.FIVE_MINUTES)
    store.delete_before(LATER_NS, resolution=Resolution.HOUR)
    assert list(store.fields("gpu", tenants=("acme",))) == ["fresh", "power_watts"]
    assert store.fields("gpu", tenants=("globex",)) == {}


def test_values_of_tags_are_known_while_a_roll_up_has_them(store: DuckDBStore) -> None:
    assert store.tag_values("gpu", "gpu", tenants=None) == ["0", "1", "7"]
    assert store.tag_values("host", "zone", tenants=("acme",)) == ["b"]


@pytest.mark.parametrize("is_fine_kept", [True, False])
def test_the_newest_values_of_expired_samples_are_those_of_the_roll_ups(
    store: DuckDBStore, *, is_fine_kept: bool
) -> None:
    if not is_fine_kept:
        store.delete_before(LATER_NS, resolution=Resolution.FIVE_MINUTES)

    assert newest(store, "power_watts", "busy", "note") == [
        Latest({"gpu": "0"}, OLD_NS, {"power_watts": 1.0, "busy": True}),
        Latest({"gpu": "1"}, LATER_NS, {"power_watts": 3.0}),
    ]


def test_the_newest_values_of_expired_samples_keep_to_the_bounds(store: DuckDBStore) -> None:
    assert newest(store, "power_watts", until_ns=OLD_NS) == []
    assert [row.time_ns for row in newest(store, "power_watts", until_ns=OLD_NS + 1)] == [OLD_NS]


def test_a_group_with_old_and_new_values_has_both(store: DuckDBStore) -> None:
    write_all(store, [gpu(LATER_NS + 1, fresh=5.0)], ACME)

    assert newest(store, "power_watts", "fresh")[0] == Latest(
        {"gpu": "0"}, LATER_NS + 1, {"power_watts": 1.0, "fresh": 5.0}
    )


def test_late_samples_of_expired_hours_are_listed_before_they_are_rolled_up(
    store: DuckDBStore,
) -> None:
    write_all(store, [gpu(START_NS + 1, gpu="late", late=1.0)], ACME)

    for _ in range(2):
        assert store.tag_values("gpu", "gpu", tenants=("acme",)) == ["0", "1", "late"]
        assert "late" in store.fields("gpu", tenants=("acme",))
        store.maintain(now_ns=LATER_NS + DAY_NS)
