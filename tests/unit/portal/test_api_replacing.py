"""A PUT resets nothing that it leaves out: it needs every field; a PATCH changes what it has."""

from typing import Any

import pytest
from flask import Flask

from tests.cast import Cast
from tests.unit.portal.conftest import Browser
from tests.unit.portal.test_api_preconditions import OF_ALICE, OF_OLIVIA, described
from tests.unit.portal.world import World

__all__ = ["described"]

# These change by themselves, or with every change.
VOLATILE = {"updated_at", "next_silence_id", "silence_id", "revision"}
# Saved in one notation, whatever was entered.
NORMALIZED = {"/api/v1/platform/rules/{platform_rule_id}": "expression"}


# Credentials, which no GET shows.
KEPT_WHEN_EMPTY = {"secret_access_key", "session_token", "bearer_token"}


def replaced_paths(described: dict[str, Any]) -> list[str]:
    return [
        path
        for path, item in described["paths"].items()
        if "application/json" in item.get("put", {}).get("requestBody", {}).get("content", {})
        # The head of a manifest is written once, and nothing is replaced.
        and not path.endswith("/head")
    ]


def required_fields(described: dict[str, Any], path: str) -> set[str]:
    """The fields that the description of a PUT requires, which are all that it has."""
    content = described["paths"][path]["put"]["requestBody"]["content"]["application/json"]
    schema = described["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
    # A rule has either of these.
    alternatives = {"expression", "measurement", "field"}
    assert set(schema["properties"]) - set(schema["required"]) <= alternatives
    return set(schema["required"])


def stable(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in VOLATILE}


def test_every_put_needs_all_fields_and_has_a_patch_that_keeps_the_others(
    described: dict[str, Any],
    cast: Cast,
    world: World,
    *,
    alice: Browser,
    bob: Browser,
    olivia: Browser,
) -> None:
    paths = replaced_paths(described)
    assert len(paths) >= 12
    for path in paths:
        browser = bob if "job-schedules" in path else alice
        if path.startswith(OF_OLIVIA) and not path.endswith(OF_ALICE):
            browser = olivia
        ids = {**world.ids, "tenant_id": cast.acme.id}
        address = path.format(**ids)
        before = browser.get(address).get_json()
        refused = browser.call("PUT", address, {})
        assert (refused.status_code, path) == (422, path)
        assert set(refused.get_json()["errors"]) >= required_fields(described, path), path
        names = sorted(required_fields(described, path) - KEPT_WHEN_EMPTY)
        # A PATCH would reset what the GET does not show.
        assert set(names) <= before.keys(), path
        for body in ({}, {names[0]: before[names[0]]}):
            changed = browser.call("PATCH", address, body)
            assert changed.status_code == 200, (path, changed.text)
        after = browser.get(address).get_json() | {
            name: before[name] for name in [NORMALIZED.get(path)] if name
        }
        assert stable(after) == stable(before), path


@pytest.mark.usefixtures("app")
def test_a_patch_of_queue_settings_changes_one_and_a_put_names_the_missing(
    app: Flask, cast: Cast, alice: Browser
) -> None:
    path = f"/api/v1/tenants/{cast.acme.id}/queue-settings"
    roots = [{"path": "/data", "is_read_only": True}]
    alice.call("PATCH", path, {"max_gpus": 8, "data_roots": roots})
    changed = alice.call("PATCH", path, {"allows_preemption": True}).get_json()
    assert (changed["max_gpus"], changed["data_roots"]) == (8, roots)
    assert changed["allows_preemption"]
    refused = alice.call("PUT", path, {"max_gpus": 4}).get_json()
    missing = {"placement_policy", "max_gpus_per_user", "allows_preemption", "data_roots"}
    isolation = {"isolation_between_users", "isolation_between_projects"}
    networks = {"allows_gang_egress", "allows_host_network", "encrypts_gang_networks"}
    others = {"job_retention_days", "ordering", "longest_fetch_minutes"}
    assert set(refused["errors"]) == missing | isolation | networks | others
    assert alice.get(path).get_json() == changed
    assert alice.call("PATCH", path, {"max_gpus": None}).get_json()["max_gpus"] is None
    wrong = alice.call("PATCH", path, {"max_gpu": 4, "data_roots": [{"path": "/etc"}]})
    assert (wrong.status_code, set(wrong.get_json()["errors"])) == (422, {"max_gpu"})
    assert app
