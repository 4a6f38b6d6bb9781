"""Limits of a tenant: points per second and active series."""

import pytest

from access.ingest.series_limit import SeriesLimit
from core.clock import to_ns
from core.db import SessionFactory
from tests.cast import NOON, Cast, FrozenClock, make_appliance
from tests.unit.access.conftest import AgentAPI
from timeseries.points import Batch, Point
from timeseries.store import Store

NOON_NS = to_ns(NOON)


def batch_of(*hosts: str, measurement: str = "cpu") -> Batch:
    return Batch.of(Point(measurement, {"host": host}, {"a": 1.0}, NOON_NS) for host in hosts)


class Tenant:
    """Sends batches of one tenant and tells the positions that were refused."""

    def __init__(self, limit: SeriesLimit, clock: FrozenClock) -> None:
        self.limit = limit
        self.clock = clock

    def send(self, batch: Batch, *, tenant: str = "acme", appliance: str = "dgx-1") -> list[int]:
        return sorted(self.limit.rejected(batch, identity=(tenant, appliance), now=self.clock()))


@pytest.fixture
def tenant(clock: FrozenClock) -> Tenant:
    return Tenant(SeriesLimit(2), clock)


def test_series_up_to_the_limit_are_taken_and_the_next_is_refused(tenant: Tenant) -> None:
    assert tenant.send(batch_of("a", "b", "c", "a", "c")) == [2, 4]


def test_known_series_are_taken_at_the_limit(tenant: Tenant) -> None:
    tenant.send(batch_of("a", "b"))
    assert tenant.send(batch_of("b", "c", "a")) == [1]


@pytest.mark.parametrize(
    ("batch", "appliance"),
    [(batch_of("c"), "dgx-1"), (batch_of("a", measurement="load"), "dgx-1"), (batch_of("a"), "x")],
    ids=["another tag value", "another measurement", "another appliance"],
)
def test_what_makes_another_series(tenant: Tenant, batch: Batch, appliance: str) -> None:
    tenant.send(batch_of("a", "b"))
    assert tenant.send(batch, appliance=appliance) == [0]


def test_a_tenants_series_do_not_count_for_another(tenant: Tenant) -> None:
    tenant.send(batch_of("a", "b"))
    assert tenant.send(batch_of("c", "d"), tenant="globex") == []


def test_a_series_makes_room_within_two_hours_of_silence(tenant: Tenant) -> None:
    tenant.send(batch_of("a", "b"))
    tenant.clock.advance(3600)
    assert tenant.send(batch_of("b", "c")) == [1]
    tenant.clock.advance(3600)
    assert tenant.send(batch_of("b", "c")) == []
    assert tenant.send(batch_of("a")) == [0]


def test_a_long_silence_frees_all_series(tenant: Tenant) -> None:
    tenant.send(batch_of("a", "b"))
    tenant.clock.advance(2 * 3600)
    assert tenant.send(batch_of("c", "d")) == []


def test_a_series_that_goes_on_is_counted_once(tenant: Tenant) -> None:
    for _ in range(5):
        assert tenant.send(batch_of("a", "b")) == []
        tenant.clock.advance(3000)


def test_no_limit_is_zero(clock: FrozenClock) -> None:
    assert Tenant(SeriesLimit(0), clock).send(batch_of(*map(str, range(1000)))) == []


@pytest.mark.parametrize("settings", [{"max_points_per_second_per_tenant": 0.2}], indirect=True)
def test_a_tenant_over_its_rate_is_429_with_retry_after(
    api: AgentAPI,
    clock: FrozenClock,
    sessions: SessionFactory,
    cast: Cast,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.time", lambda: clock().timestamp())
    with sessions.begin() as session:
        make_appliance(session, session.merge(cast.globex), "elsewhere")
    lines = "".join(f"cpu usage_percent=1 {NOON_NS + n}\n" for n in range(4))
    assert api.write(lines).status_code == 204
    response = api.write(lines)
    assert response.status_code == 429
    assert response.headers["Retry-After"] == "10"
    assert response.json()["code"] == "too many requests"
    assert "0.2 points per second" in response.json()["message"]
    others = api.write(lines, headers={"Authorization": "Bearer vda_globex_elsewhere"})
    assert others.status_code == 204
    clock.advance(10)
    assert api.write(lines).status_code == 204


@pytest.mark.parametrize("settings", [{"max_series_per_tenant": 2}], indirect=True)
def test_series_over_the_limit_are_named_and_the_known_ones_stored(
    api: AgentAPI, store: Store, cast: Cast
) -> None:
    assert api.write("cpu,core=0 usage_percent=1\ncpu,core=1 usage_percent=2").status_code == 204
    response = api.write("cpu,core=2 usage_percent=3\ncpu,core=1 usage_percent=4")
    body = response.json()
    assert response.status_code == 400
    assert [error["line"] for error in body["errors"]] == [1]
    assert "the tenant's limit of 2" in body["errors"][0]["reason"]
    assert store.tag_values("cpu", "core", tenants=(cast.acme.id,)) == ["0", "1"]


@pytest.mark.parametrize("settings", [{"max_fields_per_tenant": 3}], indirect=True)
def test_fields_over_the_limit_are_named_and_the_known_ones_stored(
    api: AgentAPI, store: Store, cast: Cast, clock: FrozenClock, sessions: SessionFactory
) -> None:
    with sessions.begin() as session:
        make_appliance(session, session.merge(cast.globex), "elsewhere")
    assert api.write("cpu a=1,b=1\nmemory a=1").status_code == 204
    response = api.write("cpu a=2,c=1\ncpu b=2\nmemory b=1")
    assert response.status_code == 400
    body = response.json()
    assert [error["line"] for error in body["errors"]] == [1, 3]
    assert "the tenant's limit of 3" in body["errors"][0]["reason"]
    assert store.fields("cpu", tenants=(cast.acme.id,)).keys() == {"a", "b"}
    others = api.write("cpu d=1", headers={"Authorization": "Bearer vda_globex_elsewhere"})
    assert others.status_code == 204
    clock.advance(2 * 3600)
    assert api.write("cpu c=1").status_code == 204


@pytest.mark.parametrize("settings", [{"max_points_per_second_per_tenant": 0.001}], indirect=True)
def test_a_long_wait_is_reported_as_a_retry_after_five_minutes(api: AgentAPI) -> None:
    assert api.write("cpu usage_percent=1\n" * 100).status_code == 204
    assert api.write("cpu usage_percent=1").headers["Retry-After"] == "300"
