"""Quotas at the agent API: series, storage and enrollment."""

import pytest

from core.db import SessionFactory
from tenants.lifecycle.usage import SampleCounts, sample_counts
from tenants.models import Appliance, EnrollmentToken, TenantUsage
from tenants.quotas import Limits, set_limits
from tests.cast import NOON, Cast, FrozenClock, make_appliance, scope_of
from tests.unit.access.conftest import AgentAPI, eventually
from tests.unit.tenants.helpers import enrollment_secret
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
                tenant_id=cast.acme.id,
                day=NOON.date(),
                measured_at=NOON,
                appliances=1,
                gpus=0,
                points=10,
                storage_bytes=storage_bytes,
            )
        )


def test_a_tenants_quota_of_series_applies(api: AgentAPI, store: Store, cast: Cast) -> None:
    assert api.write("cpu,core=0 usage_percent=1\ncpu,core=1 usage_percent=2").status_code == 204
    response = api.write("cpu,core=2 usage_percent=3")
    assert response.status_code == 400
    assert "the tenant's limit of 2" in response.json()["message"]
    assert store.tag_values("cpu", "core", tenants=(cast.acme.id,)) == ["0", "1"]


def test_samples_of_a_tenant_whose_storage_is_full_are_429_until_there_is_room(
    api: AgentAPI, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    use(sessions, cast, 1000)
    response = api.write("cpu usage_percent=1")
    assert response.status_code == 429
    assert response.headers["Retry-After"] == "300"
    assert "1000 B of 1000 B" in response.json()["message"]
    use(sessions, cast, 999)
    clock.advance(11)
    assert eventually(lambda: api.write("cpu usage_percent=1").status_code == 204)


def test_a_tenants_quotas_of_names_apply_to_no_other(
    api: AgentAPI, store: Store, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        make_appliance(session, session.merge(cast.globex), "elsewhere")
        limits = Limits(max_measurements=2, max_fields=3)
        set_limits(session, scope_of(cast.olivia), cast.acme.id, limits)
    lines = "a x=1,y=1\nb x=1\nc x=1\na z=1\nb x=2\na y=2"

    refused = api.write(lines).json()
    others = api.write(lines, headers={"Authorization": "Bearer vda_globex_elsewhere"})

    reasons = {error["line"]: error["reason"] for error in refused["errors"]}
    assert reasons.keys() == {3, 4}
    assert "limit of 2 measurements" in reasons[3]
    assert "limit of 3 fields" in reasons[4]
    assert store.measurements(tenants=(cast.acme.id,)) == ["a", "b"]
    assert others.status_code == 204

    def stored_counts() -> dict[str, SampleCounts]:
        clock.advance(61)
        api.write("b x=1")
        with sessions() as session:
            return sample_counts(session, now=clock.now)

    counts = {
        cast.acme.id: SampleCounts(series=2, measurements=2, fields=3),
        cast.globex.id: SampleCounts(series=3, measurements=3, fields=5),
    }
    assert eventually(lambda: stored_counts() == counts)


def test_the_number_of_series_of_a_tenant_is_stored(
    api: AgentAPI, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    assert api.write("cpu,core=0 usage_percent=1\ncpu,core=1 usage_percent=2").status_code == 204

    def stored_series() -> int | None:
        clock.advance(61)
        api.write("cpu,core=0 usage_percent=1")
        with sessions() as session:
            counts = sample_counts(session, [cast.acme.id], now=clock.now)
            return counts[cast.acme.id].series if counts else None

    assert eventually(lambda: stored_series() == 2)


def test_storage_below_the_quota_is_taken(
    api: AgentAPI, sessions: SessionFactory, cast: Cast
) -> None:
    use(sessions, cast, 999)
    assert api.write("cpu usage_percent=1").status_code == 204


def test_an_enrollment_above_the_quota_is_409_and_spends_nothing(
    api: AgentAPI, sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        secret = enrollment_secret(session, cast.alice)
    body = {"token": secret, "name": "gpu-02", "inventory": {"hostname": "gpu-02"}}
    response = api.request("POST", "/agent/v1/enroll", json=body)
    assert response.status_code == 409, response.text
    assert "1 of at most 1 appliances" in response.json()["message"]
    with sessions() as session:
        assert session.query(EnrollmentToken).one().uses_left == 1
