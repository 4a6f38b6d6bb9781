"""Write tokens: hosts without an agent, their states, and whose readings count as ours."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from core.db import SessionFactory
from tenants.models import Appliance, ApplianceState, TenantQuota, WriteToken
from tenants.reporting_hosts import claim_host, sweep_reporting_hosts
from tenants.write_tokens import create_write_token, hosts_of, revoke_write_token
from tests.cast import Cast, FrozenClock, make_appliance, scope_of
from tests.fixtures.racing import race
from tests.fixtures.remote_write import headers, packed, request_of
from tests.unit.access.conftest import AgentAPI, eventually
from tests.unit.access.test_remote_write import PATH, now_ms, series_of, stored
from timeseries.store import Store

Make = Callable[..., tuple[str, str]]
TELEGRAF = {"User-Agent": "Telegraf/1.32.0 Go/1.23"}


@pytest.fixture
def make(sessions: SessionFactory, cast: Cast, clock: FrozenClock) -> Make:
    """Create a write token of acme; return its id and a header."""

    def created(pattern: str = "*", *, lifetime: timedelta = timedelta(days=1)) -> tuple[str, str]:
        with sessions.begin() as session:
            token, secret = create_write_token(
                session,
                scope_of(cast.alice),
                appliance_pattern=pattern,
                lifetime=lifetime,
                now=clock.now,
            )
            return token.id, f"Bearer {secret}"

    return created


@pytest.fixture
def revoke(sessions: SessionFactory, cast: Cast, clock: FrozenClock) -> Callable[[str], None]:
    """Revoke a write token."""

    def revoked(token_id: str) -> None:
        with sessions.begin() as session:
            revoke_write_token(session, scope_of(cast.alice), token_id, now=clock.now)

    return revoked


def post(api: AgentAPI, authorization: str, *series: dict[str, Any]) -> Any:  # noqa: ANN401
    sent = headers() | {"Authorization": authorization}
    return api.request("POST", PATH, data=packed(request_of(series)), headers=sent)


def node(name: str, host: str, **labels: str) -> dict[str, str]:
    return {"__name__": name, "instance": f"{host}:9100", "job": "node", **labels}


@pytest.fixture
def hosts(sessions: SessionFactory, cast: Cast) -> Callable[[], dict[str, Appliance]]:
    """Return the appliances of acme by name."""

    def listed() -> dict[str, Appliance]:
        with sessions() as session:
            rows = session.scalars(select(Appliance).where(Appliance.tenant_id == cast.acme.id))
            return {row.name: row for row in rows}

    return listed


Hosts = Callable[[], dict[str, Appliance]]


def test_hosts_that_are_scraped_become_reporting_appliances(
    api: AgentAPI, make: Make, hosts: Hosts, clock: FrozenClock, store: Store
) -> None:
    _, authorization = make()
    at = now_ms(clock)
    response = post(
        api,
        authorization,
        series_of(node("node_load1", "gpu-01"), 1.5, at),
        series_of(node("node_load1", "gpu-02"), 2.5, at),
        series_of({"__name__": "lonely"}, 1.0, at),
    )
    assert response.status_code == 400
    [error] = response.json()["errors"]
    assert (error["line"], "which host" in error["reason"]) == (3, True)
    made = hosts()
    assert {made[name].state for name in ("gpu-01", "gpu-02")} == {ApplianceState.REPORTING}
    values = {
        point.tags["appliance"]: point.fields["load1"] for point in stored(store, "load", clock)
    }
    assert values == {made["gpu-01"].id: 1.5, made["gpu-02"].id: 2.5}
    assert len(stored(store, "node_load1", clock)) == 2


def test_a_token_lists_its_hosts_with_the_time_of_their_last_samples(
    api: AgentAPI, make: Make, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    token_id, authorization = make()
    sent = [series_of(node("m", f"gpu-{n}"), 1.0, now_ms(clock)) for n in (1, 2)]
    assert post(api, authorization, *sent).status_code == 204

    def is_used() -> bool:
        with sessions() as session:
            return session.get_one(WriteToken, token_id).last_used_at == clock.now

    assert eventually(is_used)
    with sessions() as session:
        listed = hosts_of(session, scope_of(cast.alice), token_id)
    assert {(host.name, host.last_seen_at) for host in listed} == {
        ("gpu-1", clock.now),
        ("gpu-2", clock.now),
    }


def test_counters_become_rates_and_parts_become_percentages(
    api: AgentAPI, make: Make, clock: FrozenClock, store: Store
) -> None:
    _, authorization = make("gpu-01")
    at = now_ms(clock)

    def reading(seconds: int) -> list[dict[str, Any]]:
        time_ms = at - 60_000 + seconds * 1000
        busy = {"0": 0.25 * seconds, "1": 0.75 * seconds}
        return [
            *(
                series_of(node("node_cpu_seconds_total", "x", cpu=cpu, mode="idle"), value, time_ms)
                for cpu, value in busy.items()
            ),
            series_of(node("node_cpu_seconds_total", "x", cpu="0", mode="iowait"), 5.0, time_ms),
            series_of(node("node_memory_MemTotal_bytes", "x"), 1000.0, time_ms),
            series_of(node("node_memory_MemAvailable_bytes", "x"), 400.0, time_ms),
        ]

    # The series of a scrape come in several posts.
    for seconds in (0, 10):
        for series in reading(seconds):
            assert post(api, authorization, series).status_code == 204
    cpu = stored(store, "cpu", clock)[-1].fields
    assert cpu["idle_percent"] == pytest.approx(50.0)
    assert cpu["usage_percent"] == pytest.approx(50.0)
    memory = stored(store, "memory", clock)[-1].fields
    assert (memory["used_bytes"], memory["used_percent"]) == (600.0, 60.0)


def test_telegraf_and_other_programs_do_not_mix(
    api: AgentAPI, make: Make, clock: FrozenClock, store: Store
) -> None:
    _, telegraf = make("gpu-01")
    _, prometheus = make("gpu-01")
    at = now_ms(clock)
    lines = (
        f"system,host=gpu-01 load1=1.5,load5=1 {at}\n"
        f"cpu,host=gpu-01,cpu=cpu-total usage_idle=90,usage_iowait=0 {at}\n"
        f"gpu,host=gpu-01,gpu=0 utilization_percent=40 {at}"
    )
    sent = {**TELEGRAF, "Authorization": telegraf}
    assert api.write(lines, params={"precision": "ms"}, headers=sent).status_code == 204
    late = at + 1000
    response = post(api, prometheus, series_of(node("node_load1", "gpu-01"), 99.0, late))
    assert response.status_code == 204
    assert [point.fields["load1"] for point in stored(store, "load", clock)] == [1.5]
    # Telegraf's `cpu` has another meaning than ours; of the gauges that it sends as ours, none.
    assert stored(store, "cpu", clock)[0].fields == {
        "idle_percent": 90.0,
        "iowait_percent": 0.0,
        "usage_percent": 10.0,
    }
    assert stored(store, "telegraf_cpu", clock)[0].fields["usage_idle"] == 90.0
    assert stored(store, "gpu", clock)[0].fields == {"utilization_percent": 40.0}
    # Telegraf sends no longer: Prometheus, which goes on, takes over.
    for _ in range(5):
        clock.advance(61)
        sent = series_of(node("node_load1", "gpu-01"), 3.0, now_ms(clock))
        assert post(api, prometheus, sent).status_code == 204
    assert stored(store, "load", clock)[-1].fields == {"load1": 3.0}


def test_beside_an_agent_nothing_gets_the_names_of_its_metrics(
    api: AgentAPI, make: Make, clock: FrozenClock, store: Store, dgx: Appliance
) -> None:
    _, authorization = make(dgx.name)
    at = now_ms(clock)
    lines = f"system,host=x load1=1.5 {at}\nswap,host=x used_percent=5 {at}\ngpu v=1 {at}"
    lines += f"\ngpu_power_watts,host=x value=9 {at}\ngpu_power,host=x watts=9 {at}"
    sent = {**TELEGRAF, "Authorization": authorization}
    assert api.write(lines, params={"precision": "ms"}, headers=sent).status_code == 204
    assert not [name for name in ("load", "swap", "gpu") if stored(store, name, clock)]
    [swap] = stored(store, "telegraf_swap", clock)
    assert (swap.tags["appliance"], swap.fields) == (dgx.id, {"used_percent": 5.0})
    assert stored(store, "telegraf_gpu", clock)
    # As in PromQL, where these would be gpu.power_watts.
    for name in ("gpu_power_watts", "gpu_power"):
        assert not stored(store, name, clock)
        assert stored(store, f"telegraf_{name}", clock)
    assert stored(store, "system", clock)


def test_a_token_writes_only_what_its_pattern_covers(
    api: AgentAPI, make: Make, hosts: Hosts, clock: FrozenClock
) -> None:
    _, authorization = make("gpu-*")
    at = now_ms(clock)
    response = post(
        api,
        authorization,
        series_of(node("node_load1", "gpu-07"), 1.0, at),
        series_of(node("node_load1", "web-01"), 1.0, at),
        series_of(node("node_load1", "gpu-bad name"), 1.0, at),
    )
    assert [error["line"] for error in response.json()["errors"]] == [2, 3]
    assert "gpu-07" in hosts()
    # It can do nothing else.
    for method, path in (("POST", "/agent/v1/heartbeat"), ("GET", "/agent/v1/desired")):
        response = api.request(method, path, headers={"Authorization": authorization})
        assert response.status_code == 401, path


@pytest.mark.parametrize("path", ["/api/v2/write", "/write", "/collectd", PATH, "/v1/metrics"])
def test_revoked_and_expired_tokens_are_refused(
    api: AgentAPI, make: Make, revoke: Callable[[str], None], clock: FrozenClock, path: str
) -> None:
    token_id, authorization = make()
    _, short = make(lifetime=timedelta(seconds=1))
    clock.advance(2)
    revoke(token_id)
    for header in (authorization, short, "Bearer vdw_wrong"):
        response = api.request("POST", path, headers=headers() | {"Authorization": header})
        assert response.status_code == 401, header


def test_a_host_that_two_processes_add_is_one_appliance(
    make: Make, sessions: SessionFactory, clock: FrozenClock
) -> None:
    token_id, _ = make()

    def claim() -> str:
        with sessions.begin() as session:
            host, _ = claim_host(
                session, token_id, name="gpu-01", program="prometheus", now=clock.now
            )
            return host.id

    results = race([claim] * 4)
    assert len(set(results)) == 1


def test_a_retired_host_is_refused_and_a_foreign_name_is_another_appliance(
    api: AgentAPI, make: Make, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        old = make_appliance(session, cast.acme, "old")
        old.retired_at = clock.now
        make_appliance(session, cast.globex, "twin")
    _, authorization = make()
    at = now_ms(clock)
    response = post(api, authorization, series_of(node("node_load1", "old"), 1.0, at))
    assert "was retired" in response.json()["errors"][0]["reason"]
    assert post(api, authorization, series_of(node("m", "twin"), 1.0, at)).status_code == 204
    with sessions() as session:
        own = select(Appliance).where(Appliance.tenant_id == cast.acme.id)
        twin = session.scalars(own.where(Appliance.name == "twin")).one()
        assert twin.state is ApplianceState.REPORTING


def test_a_host_without_recent_samples_is_silent_until_the_next_ones(
    api: AgentAPI, make: Make, sessions: SessionFactory, hosts: Hosts, clock: FrozenClock
) -> None:
    _, authorization = make("gpu-01")
    sent = series_of(node("m", "x"), 1.0, now_ms(clock))
    assert post(api, authorization, sent).status_code == 204

    def is_noted() -> bool:
        with sessions() as session:
            return session.scalars(select(WriteToken.last_used_at)).one() is not None

    assert eventually(is_noted)
    clock.advance(360)
    with sessions.begin() as session:
        silent = sweep_reporting_hosts(session, silent_after=timedelta(minutes=5), now=clock.now)
    assert [host.name for host in silent] == ["gpu-01"]
    assert hosts()["gpu-01"].state is ApplianceState.SILENT
    sent = series_of(node("m", "x"), 1.0, now_ms(clock))
    assert post(api, authorization, sent).status_code == 204

    def is_back() -> bool:
        return hosts()["gpu-01"].state is ApplianceState.REPORTING

    assert eventually(is_back)


def test_a_tenant_without_a_free_appliance_adds_no_host(
    api: AgentAPI, make: Make, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        session.add(TenantQuota(tenant_id=cast.acme.id, max_appliances=1))
    _, authorization = make()
    response = post(api, authorization, series_of(node("m", "gpu-01"), 1.0, now_ms(clock)))
    assert "appliances" in response.json()["errors"][0]["reason"]
