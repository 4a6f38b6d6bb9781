"""Bodies of requests that are well formed, but made to cost much."""

import json

import pytest

from tests.unit.portal.conftest import Browser


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/dashboards/apply", {"dashboards": [{}] * 30_000}),
        ("/api/v1/rules/apply", {"rules": [{}] * 30_000}),
        ("/api/v1/jobs", {"name": "x", "image": "x", "env": {str(n): "" for n in range(30_000)}}),
    ],
)
def test_a_body_of_many_values_is_refused_before_a_schema_reads_it(
    alice: Browser, path: str, body: object
) -> None:
    answer = alice.call("POST", path, body)
    assert answer.status_code == 422
    assert "more than 20000 values" in answer.get_json()["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/rules/preview", '{"expression": "avg(gpu.x) over 5m > 1", "annotation": %s}'),
        ("/api/v1/rules/preview", '{"expression": %s}'),
    ],
)
@pytest.mark.parametrize(
    "text",
    [
        "{{ 1|round(2500000,'ceil') }}",
        "{{ 'x' * 1000000000 }}",
        "{{ " + "(" * 480 + "}}",
        "avg(gpu.x) over " + "9" * 3000 + "m > 1",
        "avg(" * 1000,
    ],
)
def test_hostile_texts_in_a_preview_are_refused(
    alice: Browser, path: str, body: str, text: str
) -> None:
    assert alice.call("POST", path, json.loads(body % json.dumps(text))).status_code == 422
