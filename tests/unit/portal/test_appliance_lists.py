"""Lists of appliances and jobs read summaries: neither inventory nor health."""

from typing import Any

import pytest
from sqlalchemy import Engine

from core.db import SessionFactory
from tenants.models import Appliance
from tests.cast import Cast, FrozenClock, make_appliance
from tests.unit.portal.conftest import Browser
from tests.unit.portal.test_sign_in_cost import COMMIT, statements
from tests.unit.portal.world_parts import inventory, run_job

GPUS = 100
APPLIANCES = 20
HEALTH = {"state": "healthy", "appliance_class": "100 x flagship"}
LISTS = ("/api/v1/appliances", "/api/v1/jobs", "/appliances", "/jobs", "/jobs/new")


def add(sessions: SessionFactory, cast: Cast, count: int, *, start: int = 0) -> None:
    with sessions.begin() as session:
        for number in range(start, start + count):
            name = f"dgx-{number:03}"
            appliance = make_appliance(session, cast.acme, name, inventory=inventory(name, GPUS))
            appliance.health = HEALTH


def reading(engine: Engine, browser: Browser, path: str) -> tuple[list[str], bytes]:
    browser.get(path)
    with statements(engine) as sent:
        answer = browser.get(path)
    assert answer.status_code == 200
    return [statement for statement in sent if statement != COMMIT], answer.data


def test_a_list_reads_no_inventory_in_as_many_statements_for_any_number(
    bob: Browser, cast: Cast, engine: Engine, sessions: SessionFactory, clock: FrozenClock
) -> None:
    add(sessions, cast, 1)
    with sessions.begin() as session:
        run_job(session, cast, now=clock.now)
    short_lists = {path: reading(engine, bob, path)[0] for path in LISTS}
    add(sessions, cast, APPLIANCES, start=1)
    with sessions.begin() as session:
        for _ in range(3):
            run_job(session, cast, now=clock.now)
    for path, short_list in short_lists.items():
        long_list, _ = reading(engine, bob, path)
        assert len(long_list) == len(short_list), path
        for statement in long_list:
            assert "appliances.inventory" not in statement, path
            assert "appliances.health " not in statement, path
            assert "appliances.health," not in statement, path


@pytest.mark.parametrize("user", ["bob", "olivia"])
def test_a_list_by_rest_has_less_than_a_kilobyte_per_appliance(
    request: pytest.FixtureRequest,
    cast: Cast,
    engine: Engine,
    sessions: SessionFactory,
    user: str,
) -> None:
    browser: Browser = request.getfixturevalue(user)
    add(sessions, cast, APPLIANCES)
    _, data = reading(engine, browser, "/api/v1/appliances?page_size=500")
    assert len(data) < 1024 * APPLIANCES
    items: list[dict[str, Any]] = browser.get("/api/v1/appliances").json["items"]  # type: ignore[index] # JSON
    assert {"inventory", "health"}.isdisjoint(items[0])
    assert (items[0]["gpu_count"], items[0]["gpu_model"]) == (GPUS, "H100 80GB")
    assert (items[0]["health_state"], items[0]["appliance_class"]) == (None, "100 x flagship")


def test_one_appliance_is_read_with_its_inventory_in_one_statement(
    bob: Browser, cast: Cast, engine: Engine, sessions: SessionFactory
) -> None:
    add(sessions, cast, 1)
    with sessions() as session:
        ident = session.query(Appliance.id).scalar()
    sent, _ = reading(engine, bob, f"/api/v1/appliances/{ident}")
    assert sum("FROM appliances" in statement for statement in sent) == 1
    answer = bob.get(f"/api/v1/appliances/{ident}").json
    assert answer is not None
    assert len(answer["inventory"]["gpus"]) == GPUS
