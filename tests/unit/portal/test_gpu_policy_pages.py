"""The page and the REST API of partition policies, and of isolation."""

import pytest

from core.db import SessionFactory
from tests.cast import Cast
from tests.unit.jobqueue.builders import add_appliance
from tests.unit.jobqueue.mig_gpus import mig_gpus
from tests.unit.portal.conftest import Browser

PATH = "/appliances/gpu-policies"
API = "/api/v1/gpu-partition-policies"
FORM = {
    "name": "Notebooks",
    "gpu_model": "H100",
    "labels": "",
    "mode": "mig",
    "layout": "3g.40gb, 3 x 1g.10gb",
    "may_change_layout": "y",
    "shares": "1",
}


@pytest.fixture(autouse=True)
def _fleet(sessions: SessionFactory, cast: Cast) -> None:
    with sessions.begin() as session:
        add_appliance(
            session,
            cast.acme,
            "dgx-01",
            gpus=mig_gpus("dgx-01", 2),
            partition_modes=["mig", "mps", "time_slicing"],
        )


def test_a_policy_is_previewed_added_moved_changed_and_deleted(
    alice: Browser, bob: Browser
) -> None:
    assert "No partition policies" in alice.get(PATH).text
    tried = alice.post(PATH, FORM | {"check": "1"})
    assert "Not saved yet." in tried.text
    assert "Covers 2 GPUs on 1 appliance: dgx-01." in tried.text
    assert alice.get(API).get_json()["total"] == 0
    assert alice.post(PATH, FORM).status_code == 302
    assert alice.post(PATH, FORM | {"name": "Rest", "mode": "whole"}).status_code == 302
    first, second = bob.get(API).get_json()["items"]
    assert (first["layout"], first["summary"]) == (
        ["3g.40gb", "1g.10gb", "1g.10gb", "1g.10gb"],
        "MIG: 3g.40gb, 3 x 1g.10gb; may change",
    )
    assert (first["coverage"]["gpus"], second["coverage"]["gpus"]) == (2, 0)
    page = bob.get(PATH).text
    assert "Policies before it cover all of its GPUs" in page
    assert "Add policy" not in page
    assert alice.post(f"{PATH}/{second['id']}/move", {"position": 1}).status_code == 302
    assert [item["name"] for item in bob.get(API).get_json()["items"]] == ["Rest", "Notebooks"]
    path = f"{PATH}/{first['id']}"
    assert "3g.40gb, 3 x 1g.10gb" in alice.get(path).text
    changed = alice.post(path, FORM | {"mode": "mps", "shares": "4"})
    assert changed.status_code == 302
    shown = alice.get(f"{API}/{first['id']}").get_json()
    # The layout went with the mode.
    assert (shown["mode"], shown["shares"], shown["layout"]) == ("mps", 4, [])
    assert alice.post(f"{path}/delete").status_code == 302
    assert alice.get(API).get_json()["total"] == 1


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"layout": "1g.9gb"}, "The nearest is 1g.10gb."),
        ({"layout": "9 x 1g.10gb"}, "doesn&#39;t fit"),
        ({"layout": "many x 1g.10gb"}, "is not a count of profiles"),
        ({"mode": "mps", "shares": "49"}, "enter 1 to 48"),
    ],
)
def test_what_is_wrong_stands_at_its_field(
    alice: Browser, changes: dict[str, str], text: str
) -> None:
    refused = alice.post(PATH, FORM | changes)
    assert refused.status_code == 422
    assert text in refused.text


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "x", "mode": "fractional"}, "mode"),
        ({"name": "x", "mode": "mps", "shares": 2.5}, "shares"),
        ({"name": "x", "mode": "mps", "shares": "4"}, "shares"),
        ({"name": "x", "mode": "mig", "layout": ["2g.10gb"]}, "layout"),
        ({"name": "x", "mode": "mig", "layout": [None]}, "layout"),
        ({"name": "x", "mode": "mig", "labels": {"a": 1}}, "labels"),
    ],
)
def test_invalid_bodies_are_refused_by_field(
    alice: Browser, body: dict[str, object], field: str
) -> None:
    refused = alice.client.post(API, json=body, headers={"X-CSRFToken": alice.token()})
    assert refused.status_code == 422
    assert [name.partition(".")[0] for name in refused.get_json()["errors"]] == [field]


def test_isolation_is_set_on_the_page_of_queue_settings(alice: Browser, cast: Cast) -> None:
    page = alice.get("/jobs/settings").text
    assert "not limited: a job can take the memory of the others" in page
    form = {
        "placement_policy": "first_free_else_lru",
        "policy": "fifo",
        "half_life_days": "7",
        "isolation_between_users": "",
        "isolation_between_projects": "whole",
        **dict.fromkeys(("priority_weight", "fair_share_weight", "age_weight", "size_weight"), "1"),
        "memory_usage_weight": "0",
    }
    assert alice.post("/jobs/settings", form).status_code == 302
    assert '<option selected value="whole">' in alice.get("/jobs/settings").text
    settings = alice.get(f"/api/v1/tenants/{cast.acme.id}/queue-settings").get_json()
    assert settings["isolation_between_users"] is None
    assert settings["isolation_between_projects"] == "whole"
