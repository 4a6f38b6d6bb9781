"""Quotas at the agents' door: series, storage and enrolment."""

import pytest

from core.db import SessionFactory
from tenants.customers.quotas import Limits, set_limits
from tenants.customers.series import series_counts
from tenants.models import Appliance, EnrolmentToken, TenantUsage
from tests.cast import NOON, Cast, FrozenClock, scope_of
from tests.unit.access.conftest import Door, eventually
from tests.unit.tenants.helpers import enrolment_secret
from timeseries.store import Store


@pytest.fixture(autouse=True)
def _quotas(sessions: SessionFactory, cast: Cast, dgx: Appliance) -> None:
    assert dgx
    with sessions.begin() as session:
        limits = Limits(max_series=2, max_storage_bytes=1000, max_appliances=1)
        set_limits(session, scope_of(cast.olivia), cast.acme.id, limits)


def use(sessions: SessionFactory, cast: Cast, storage_bytes: int) -> None:
    with sessions.begin() as session:
        session.merge(
            TenantUsage(
                tenant_id=cast.acme.id, day=NOON.date(), measured_at=NOON, appliances=1, gpus=0,
                points=10, storage_bytes=storage_bytes,
            )
        )  # fmt: skip


def test_a_tenants_own_quota_of_series_counts(door: Door, store: Store, cast: Cast) -> None:
    assert door.write("cpu,core=0 usage_percent=1\ncpu,core=1 usage_percent=2").status_code == 204
    response = door.write("cpu,core=2 usage_percent=3")
    assert response.status_code == 400
    assert "the tenant has 2 already" in response.json()["message"]
    assert store.tag_values("cpu", "core", tenants=(cast.acme.id,)) == ["0", "1"]


def test_samples_of_a_tenant_whose_storage_is_full_are_429_until_there_is_room(
    door: Door, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    use(sessions, cast, 1000)
    response = door.write("cpu usage_percent=1")
    assert response.status_code == 429
    assert response.headers["Retry-After"] == "300"
    assert "no more are taken" in response.json()["message"]
    use(sessions, cast, 999)
    clock.advance(11)
    assert eventually(lambda: door.write("cpu usage_percent=1").status_code == 204)


def test_how_many_series_a_tenant_has_is_kept_for_people_to_see(
    door: Door, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    assert door.write("cpu,core=0 usage_percent=1\ncpu,core=1 usage_percent=2").status_code == 204

    def kept() -> int | None:
        clock.advance(61)
        door.write("cpu,core=0 usage_percent=1")
        with sessions() as session:
            return series_counts(session, [cast.acme.id], now=clock.now).get(cast.acme.id)

    assert eventually(lambda: kept() == 2)


def test_storage_below_the_quota_is_taken(door: Door, sessions: SessionFactory, cast: Cast) -> None:
    use(sessions, cast, 999)
    assert door.write("cpu usage_percent=1").status_code == 204


def test_an_enrolment_above_the_quota_is_409_and_spends_nothing(
    door: Door, sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        secret = enrolment_secret(session, cast.alice)
    body = {"token": secret, "name": "gpu-02", "inventory": {"hostname": "gpu-02"}}
    response = door.request("POST", "/agent/v1/enroll", json=body)
    assert response.status_code == 409, response.text
    assert "1 of at most 1 appliances" in response.json()["message"]
    with sessions() as session:
        assert session.query(EnrolmentToken).one().uses_left == 1
