"""Every API error has one format, and every page error is a page."""

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from core.db import SessionFactory
from tests.cast import Cast, FrozenClock
from tests.unit.portal.conftest import Browser, SignIn
from tests.unit.portal.world_parts import add_appliance

SHAPE = {"code", "status", "message", "errors", "reason"}


def error_of(answer: TestResponse) -> dict[str, object]:
    body = answer.json
    assert isinstance(body, dict)
    assert set(body) == SHAPE
    assert body["status"] == answer.status_code
    return body


def test_a_missing_object(alice: Browser) -> None:
    body = error_of(alice.get("/api/v1/jobs/nothing"))
    assert body["code"] == "not_found"
    assert body["reason"] == "Not Found"
    assert "'nothing'" in str(body["message"])


def test_an_unknown_address(alice: Browser) -> None:
    assert error_of(alice.get("/api/v1/nothing"))["code"] == "not_found"


def test_a_wrong_method(alice: Browser) -> None:
    answer = alice.call("DELETE", "/api/v1/jobs")
    assert error_of(answer)["status"] == 405
    assert "GET" in answer.headers["Allow"]


def test_nobody(nobody: Browser) -> None:
    assert error_of(nobody.get("/api/v1/jobs"))["code"] == "unauthenticated"


def test_a_missing_permission(bob: Browser) -> None:
    answer = bob.call("POST", "/api/v1/enrollment-tokens", {})
    assert error_of(answer)["code"] == "forbidden"


def test_an_invalid_body_reports_every_field(alice: Browser) -> None:
    body = error_of(alice.call("POST", "/api/v1/jobs", {"gpus": "many", "gpu": 1}))
    assert body["status"] == 422
    assert body["code"] == "invalid_input"
    errors = body["errors"]
    assert isinstance(errors, dict)
    assert set(errors) == {"name", "gpus", "gpu"}


def test_an_invalid_query(alice: Browser) -> None:
    body = error_of(alice.get("/api/v1/jobs?page_size=100000&state=flying"))
    errors = body["errors"]
    assert isinstance(errors, dict)
    assert set(errors) == {"page_size", "state"}


def test_a_body_that_is_not_json(alice: Browser) -> None:
    headers = {"X-CSRFToken": alice.token()}
    answer = alice.client.post(
        "/api/v1/jobs", data="{", content_type="application/json", headers=headers
    )
    assert error_of(answer)["status"] == 400


def test_a_body_that_is_too_large(alice: Browser) -> None:
    answer = alice.call("POST", "/api/v1/jobs", {"name": "x" * 5_000_000})
    assert error_of(answer)["status"] == 413


@pytest.mark.own_app
def test_an_internal_error_reveals_no_details(app: Flask, sign_in: SignIn, cast: Cast) -> None:
    @app.get("/api/v1/crash")
    def crash() -> str:
        raise RuntimeError("secret detail")

    body = error_of(sign_in(cast.alice).get("/api/v1/crash"))
    assert body["code"] == "internal_error"
    assert "secret detail" not in str(body)


def test_a_job_larger_than_every_appliance_is_refused_with_figures(
    alice: Browser, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        add_appliance(session, cast, "dgx-01", now=clock.now)
    body = error_of(
        alice.call("POST", "/api/v1/jobs", {"name": "big", "image": "a/b:1", "gpus": 64})
    )
    assert body["status"] == 422
    assert body["code"] == "exceeds_every_appliance"
    assert "dgx-01" in str(body["message"])


def test_pages_show_errors_as_pages(alice: Browser) -> None:
    missing = alice.get("/jobs/nothing")
    assert missing.status_code == 404
    assert "<h1>Page not found</h1>" in missing.text
    forbidden = alice.get("/tenants")
    assert forbidden.status_code == 403
    assert "<h1>Access denied</h1>" in forbidden.text


def test_a_body_of_another_type(alice: Browser) -> None:
    headers = {"X-CSRFToken": alice.token()}
    answer = alice.client.post(
        "/api/v1/enrollment-tokens", data="uses=3", content_type="text/plain", headers=headers
    )
    assert error_of(answer)["code"] == "unsupported_media_type"


def test_a_body_that_is_not_an_object(alice: Browser) -> None:
    bodies: tuple[object, ...] = ([], "text", 5)
    for body in bodies:
        answer = alice.call("POST", "/api/v1/jobs", body)
        assert error_of(answer)["status"] == 422


def test_an_unknown_sort_field_lists_the_known_ones(alice: Browser) -> None:
    for sort in ("secret_hash", "name,name", "name,", "--name"):
        errors = error_of(alice.get(f"/api/v1/jobs?sort={sort}"))["errors"]
        assert isinstance(errors, dict)
        assert "submitted_at" in errors["sort"][0], sort


def test_an_unknown_parameter(alice: Browser) -> None:
    errors = error_of(alice.get("/api/v1/jobs?stat=running"))["errors"]
    assert isinstance(errors, dict)
    assert set(errors) == {"stat"}


def test_anonymous_requests_to_unknown_addresses_are_refused(nobody: Browser) -> None:
    assert error_of(nobody.get("/api/v1/nothing"))["status"] in {401, 404}
