"""Requests of the dashboards' callbacks with values of other types: refused, never a crash."""

import json
from copy import deepcopy
from typing import Any

import pytest

from tests.unit.portal.conftest import Browser

PATH = "/dashboards/_dash-update-component"
HOSTILE = (7, 1.5, True, [1], {"a": 1}, {"a": "b"}, "x" * 10_000, "\ud800")


def callbacks(browser: Browser) -> list[dict[str, Any]]:
    """Return the body that a page sends to each callback of the server."""
    return [
        {
            "output": entry["output"],
            "outputs": [_output(part) for part in entry["output"].strip(".").split("...")],
            "inputs": [{**item, "value": None} for item in entry["inputs"]],
            "state": [{**item, "value": None} for item in entry["state"]],
            "changedPropIds": ["url.pathname"],
        }
        for entry in browser.get("/dashboards/_dash-dependencies").get_json()
        if entry["clientside_function"] is None
    ]


def _output(name: str) -> object:
    ident, _, property_name = name.rpartition(".")
    if name.startswith("{"):
        return [{"id": {**json.loads(ident), "index": 0}, "property": property_name}]
    return {"id": ident, "property": property_name}


def send(browser: Browser, body: object) -> int:
    data = json.dumps(body)
    headers = {"X-CSRFToken": browser.token(), "Content-Type": "application/json"}
    return browser.client.post(PATH, data=data, headers=headers).status_code


def test_bodies_as_pages_send_them_are_answered(alice: Browser) -> None:
    bodies = callbacks(alice)
    assert len(bodies) == 7
    assert {send(alice, body) for body in bodies} <= {200, 204}


def test_values_of_other_types_are_refused(alice: Browser) -> None:
    for value in HOSTILE:
        for body in callbacks(alice):
            for where in ("inputs", "state"):
                for number, item in enumerate(body[where]):
                    if item["property"] == "n_intervals" and isinstance(value, int | float):
                        continue
                    if item["id"] == "changed" and isinstance(value, int | float):
                        continue
                    if item["id"].endswith("digests") and value == {"a": "b"}:
                        continue
                    changed = deepcopy(body)
                    changed[where][number]["value"] = value
                    assert send(alice, changed) in {400, 422}, changed[where][number]


OTHER_SHAPES: tuple[dict[str, object], ...] = (
    {"output": "nothing.data"},
    {"output": 7},
    {"output": "title.modified_timestamp", "inputs": [{"id": "title", "property": "data"}]},
    {"outputs": []},
    {"outputs": 7},
    {"outputs": [[7]]},
    {"outputs": {"id": "title", "property": "data"}},
    {"outputs": [[{"id": "title", "property": "data"}]]},
    {"outputs": [{"id": {"tier": 1}, "property": "x"}]},
    {"inputs": []},
    {"inputs": {}},
    {"inputs": [7]},
    {"inputs": [[]]},
    {"state": 7},
    {"changedPropIds": [7]},
    {"changedPropIds": {"a": 1}},
)


def test_bodies_of_another_shape_are_refused(alice: Browser) -> None:
    for changes in OTHER_SHAPES:
        for body in callbacks(alice):
            assert send(alice, {**body, **changes}) == 422


@pytest.mark.parametrize("body", [None, 7, [], "x", {}])
def test_what_is_no_object_is_refused(alice: Browser, body: object) -> None:
    assert send(alice, body) == 422
