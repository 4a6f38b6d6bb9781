"""The OpenAPI document is complete: permissions, errors, examples and paging."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from portal.api import registry
from portal.api.registry import RESOURCES
from portal.api.replacing import example_of
from tenants.permissions import TOKEN_SCOPES, Permission

API_GUIDE = Path(__file__).parents[3] / "docs" / "api.md"
METHODS = {"get", "post", "put", "patch", "delete"}

Operation = tuple[str, dict[str, Any]]


@pytest.fixture
def described(app: Flask) -> dict[str, Any]:
    answer = app.test_client().get("/api/v1/openapi.json").json
    assert isinstance(answer, dict)
    return answer


def operations(described: dict[str, Any]) -> Iterator[Operation]:
    for path, item in described["paths"].items():
        for method, operation in item.items():
            if method in METHODS:
                yield f"{method.upper()} {path}", operation


def test_every_operation_id_is_unique(described: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, operation in operations(described)]
    streams = 10
    assert (
        len(set(names))
        == len(names)
        == streams + sum(len(resource.needs) for resource in RESOURCES)
    )
    assert all(name.isascii() and " " not in name for name in names)


def test_every_operation_has_a_summary_and_its_permission(described: dict[str, Any]) -> None:
    for label, operation in operations(described):
        assert operation["summary"].endswith("."), label
        assert any(word in operation["description"] for word in ("Requires", "Open to")), label


def test_every_operation_documents_its_errors(described: dict[str, Any]) -> None:
    for label, operation in operations(described):
        answers = operation["responses"]
        expected = {"401", "403", "429"}
        expected |= {"404"} if "{" in label else set()
        expected |= {"400", "413", "422"} if "requestBody" in operation else set()
        expected |= {"415"} if "application/json" in _bodies(operation) else set()
        expected |= set() if label.startswith("GET") else {"409", "422"}
        assert expected <= answers.keys(), label
        for status in expected:
            shared = answers[status].get("$ref", "").rpartition("/")[2]
            answer = described["components"]["responses"].get(shared, answers[status])
            schema = answer["content"]["application/json"]["schema"]
            shapes = schema.get("oneOf", [schema])
            assert any(shape.get("$ref", "").endswith("/Error") for shape in shapes), label


def test_every_body_has_an_example(described: dict[str, Any]) -> None:
    for label, operation in operations(described):
        if "application/json" in (bodies := _bodies(operation)):
            assert bodies["application/json"]["example"], label


def _bodies(operation: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = operation.get("requestBody", {}).get("content", {})
    return content


def test_every_example_is_valid() -> None:
    bodies = [body for resource in RESOURCES for body in resource.bodies]
    assert bodies
    for body in bodies:
        example = example_of(body)
        assert example is not None, body
        body().load(example)


def test_every_list_is_paged(described: dict[str, Any]) -> None:
    for label, operation in operations(described):
        answer = operation["responses"].get("200", {}).get("content", {}).get("application/json")
        if answer is None or not answer["schema"].get("$ref", "").endswith("Page"):
            continue
        names = {parameter["name"] for parameter in operation.get("parameters", [])}
        if label.split()[1] not in SHORT:
            assert "page_size" in names, label


@pytest.mark.parametrize(
    ("path", "name"),
    [("/api/v1/rules/backtest", "days"), ("/api/v1/users/{user_id}/activate", "tenant_id")],
)
def test_a_post_documents_its_query_beside_the_idempotency_key(
    described: dict[str, Any], path: str, name: str
) -> None:
    parameters = described["paths"][path]["post"]["parameters"]
    shown = {(parameter["in"], parameter["name"]) for parameter in parameters}
    assert shown >= {("query", name), ("header", "Idempotency-Key")}


def test_only_creating_tokens_accepts_a_password(
    described: dict[str, Any],
) -> None:
    assert described["security"] == [{"token": []}]
    own = {label: op["security"] for label, op in operations(described) if "security" in op}
    assert own == {"POST /api/v1/tokens": [{"token": []}, {"password": []}]}


def test_enums_are_documented(described: dict[str, Any]) -> None:
    schemas = described["components"]["schemas"]
    assert schemas["JobRequest"]["properties"]["kind"]["enum"]
    assert schemas["TokenRequest"]["properties"]["scopes"]["items"]["enum"]
    assert schemas["User"]["properties"]["role"]["enum"]


def test_the_documentation_lists_the_scopes() -> None:
    rows = [
        f"| `{name}` | {', '.join(need.value for need in Permission if need in allowed)} |"
        for name, allowed in TOKEN_SCOPES.items()
    ]
    assert "\n".join(rows) in API_GUIDE.read_text()


# Lists that are short by their nature: they come whole, as one page.
SHORT = {
    "/api/v1/tickets/{ticket_id}/entries",
    "/api/v1/tickets/{ticket_id}/subject-events",
    "/api/v1/billing/price-lists",
    "/api/v1/agent-rollouts/versions",
    "/api/v1/jobs/{job_id}/artifacts/parts",
    "/api/v1/jobs/{job_id}/events",
    "/api/v1/market/capacity",
    "/api/v1/market/reputation/contracts/{contract_id}/ratings",
    "/api/v1/market/reputation/history",
    "/api/v1/metrics",
    "/api/v1/projects",
    "/api/v1/projects/{project_id}/members",
    "/api/v1/dashboards/apply",
    "/api/v1/saved-reports/apply",
    "/api/v1/saved-views",
    "/api/v1/job-templates",
    "/api/v1/jobs/apply",
    "/api/v1/jobs/gpu-offers",
    "/api/v1/gpu-partition-policies/modes",
    "/api/v1/platform/rules/apply",
    "/api/v1/rules/apply",
    "/api/v1/rules/preview",
}


def test_requests_that_come_while_the_document_is_made_occupy_no_thread(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = []

    def make(*, is_for_operators: bool) -> bytes:
        answers.append(app.test_client().get("/api/v1/openapi.json"))
        return str(is_for_operators).encode()

    monkeypatch.setattr(registry, "_documents", {})
    monkeypatch.setattr(registry, "_document", make)
    assert app.test_client().get("/api/v1/openapi.json").data == b"False"
    [meanwhile] = answers
    assert (meanwhile.status_code, meanwhile.headers["Retry-After"]) == (503, "5")
