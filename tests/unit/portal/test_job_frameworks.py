"""The framework of a job in the form, on its page and over REST."""

import pytest

from core.db import SessionFactory
from jobqueue.jobs.settings import QueueSettings, set_settings
from tests.cast import Cast, FrozenClock, scope_of
from tests.unit.jobqueue.builders import add_appliance, dispatch
from tests.unit.portal.conftest import Browser
from tests.unit.portal.test_job_pages import FORM

GANG = {**FORM, "nodes": "2", "gpus": "0", "gpu_memory": "", "framework": "torch"}


@pytest.fixture(autouse=True)
def appliances(sessions: SessionFactory, cast: Cast) -> None:
    with sessions.begin() as session:
        for number in (1, 2):
            network = {"address": f"192.0.2.{number}", "can_make_networks": True}
            add_appliance(session, cast.acme, f"dgx-{number:02}", network=network)


def placed(browser: Browser, sessions: SessionFactory, clock: FrozenClock, **form: str) -> str:
    """Submit a job by the form; return its path once it is placed."""
    answer = browser.post("/jobs/new", {**GANG, **form})
    assert answer.status_code == 302, answer.text
    with sessions.begin() as session:
        dispatch(session, now=clock.now)
    return answer.headers["Location"]


def test_the_page_of_a_gang_shows_what_its_framework_gets(
    bob: Browser, charlie: Browser, sessions: SessionFactory, clock: FrozenClock
) -> None:
    path = placed(bob, sessions, clock, env="MASTER_PORT=4444")
    page = bob.get(path).text
    assert "PET_NODE_RANK" in page
    assert "The first member." in page
    assert "The job sets it." in page
    options = [
        line for line in page.splitlines() if "data-log-member" in line or ">Member 0<" in line
    ]
    assert options[1].index(">Member 0<") < options[1].index(">Member 1<"), (
        "the first one's is first"
    )
    shown = bob.get(f"/api/v1{path}/framework").get_json()
    assert (shown["framework"], shown["network"]) == ("torch", "gang")
    assert (shown["rank"], shown["size"]) == (0, 2)
    assert [member["rank"] for member in shown["members"]] == [0, 1]
    variables = {variable["name"]: variable for variable in shown["variables"]}
    assert variables["MASTER_ADDR"]["value"] == shown["members"][0]["name"]
    assert variables["MASTER_PORT"] == {
        "name": "MASTER_PORT",
        "value": "4444",
        "reason": "The job sets it.",
    }
    assert charlie.get(f"/api/v1{path}/framework").status_code == 404


def test_secrets_of_a_gang_are_not_shown(
    bob: Browser, sessions: SessionFactory, clock: FrozenClock
) -> None:
    path = placed(bob, sessions, clock, framework="mpi", secrets="HYDRA_LAUNCHER=correct-horse")
    text = bob.get(f"/api/v1{path}/framework").text + bob.get(path).text
    assert "correct-horse" not in text
    assert "VEDETTE_GANG_SECRET" not in text
    assert "HYDRA_LAUNCHER_EXEC" in text


def test_a_job_without_a_framework_has_no_variables(
    bob: Browser, sessions: SessionFactory, clock: FrozenClock
) -> None:
    path = placed(bob, sessions, clock, framework="none", nodes="1")
    assert bob.get(f"/api/v1{path}/framework").get_json()["variables"] == []
    assert "framework-title" not in bob.get(path).text


def test_the_form_submits_the_network_of_the_appliance_if_the_tenant_allows_it(
    bob: Browser, cast: Cast, sessions: SessionFactory
) -> None:
    host = {**GANG, "network": "host", "uses_rdma": "y"}
    refused = bob.post("/jobs/new", host)
    assert refused.status_code == 422
    assert 'id="network-error"' in refused.text
    assert 'id="uses_rdma-error"' in refused.text
    with sessions.begin() as session:
        settings = QueueSettings(allows_host_network=True)
        set_settings(session, scope_of(cast.alice), cast.acme.id, settings)
    path = bob.post("/jobs/new", host).headers["Location"]
    job = bob.get(f"/api/v1{path}").get_json()
    assert (job["framework"], job["network"], job["uses_rdma"]) == ("torch", "host", True)
