"""Container policies on pages, by REST and in the audit log."""

import re

import pytest
from sqlalchemy import select

from core.db import SessionFactory
from tenants.models import AuditEntry
from tests.cast import Cast
from tests.unit.portal.conftest import Browser
from tests.unit.portal.test_job_pages import FORM

BOTH: dict[str, object] = {"allowed": ["restricted", "standard"], "default": "standard"}


@pytest.fixture
def path(cast: Cast) -> str:
    return f"/api/v1/tenants/{cast.acme.id}/container-policies"


def test_an_admin_sets_them_by_rest_and_the_audit_log_has_it(
    alice: Browser, path: str, sessions: SessionFactory
) -> None:
    before = alice.get(path).json
    answer = alice.call("PUT", path, json=BOTH)

    assert before is not None
    assert (before["allowed"], before["default"]) == (["restricted"], "restricted")
    assert [policy["name"] for policy in before["available"]] == ["restricted", "standard"]
    assert answer.json is not None
    assert {name: answer.json[name] for name in BOTH} == BOTH
    with sessions() as session:
        kind = AuditEntry.target_kind == "container_policies"
        (entry,) = session.scalars(select(AuditEntry).where(kind))
        assert (entry.action, entry.after) == ("container_policies.changed", BOTH)


@pytest.mark.parametrize("wrong", [{"allowed": []}, {"allowed": ["open"]}, {"default": "standard"}])
def test_a_wrong_choice_is_refused(alice: Browser, path: str, wrong: dict[str, object]) -> None:
    body = {"allowed": ["restricted"], "default": "restricted", **wrong}
    assert alice.call("PUT", path, json=body).status_code == 422


def test_a_member_sees_them_but_does_not_set_them(bob: Browser, path: str) -> None:
    assert bob.get(path).status_code == 200
    assert bob.call("PUT", path, json=BOTH).status_code == 403
    assert bob.get("/jobs/policies").status_code == 403


@pytest.mark.usefixtures("cast")
def test_the_page_sets_them_and_the_job_form_offers_them(alice: Browser, bob: Browser) -> None:
    assert "restricted" in offered(bob)
    assert "standard" not in offered(bob)

    answer = alice.post("/jobs/policies", BOTH)

    assert answer.status_code == 302
    assert 'value="standard" checked' in alice.get("/jobs/policies").text
    assert offered(bob) == {"restricted": "", "standard": " selected"}


@pytest.mark.usefixtures("cast")
def test_the_page_refuses_a_default_that_is_not_allowed(alice: Browser) -> None:
    answer = alice.post("/jobs/policies", {"allowed": ["restricted"], "default": "standard"})
    assert answer.status_code == 422
    assert 'id="default-error"' in answer.text


def test_a_job_is_submitted_with_its_policy_on_the_form_and_by_rest(
    alice: Browser, bob: Browser, path: str
) -> None:
    alice.call("PUT", path, json=BOTH)

    form = bob.post("/jobs/new", {**FORM, "gpus": "0", "gpu_memory": ""})
    answer = bob.call("POST", "/api/v1/jobs", json={"name": "a", "image": "b"})

    assert form.status_code == 302
    assert answer.json is not None
    policies = []
    for address in (form.headers["Location"], f"/jobs/{answer.json['id']}"):
        job = bob.get(f"/api/v1{address}").json
        assert job is not None
        policies.append(job["container_policy"])
        assert job["container_policy"] in bob.get(address).text
    assert policies == ["restricted", "standard"]


@pytest.mark.usefixtures("cast")
def test_a_policy_that_is_not_allowed_is_refused_beside_its_field(bob: Browser) -> None:
    body = {"name": "a", "image": "b", "container_policy": "standard"}
    answer = bob.call("POST", "/api/v1/jobs", json=body)
    form = bob.post("/jobs/new", {**FORM, "container_policy": "standard"})

    assert answer.status_code == form.status_code == 422
    assert answer.json is not None
    assert list(answer.json["errors"]) == ["container_policy"]
    assert 'id="container_policy-error"' in form.text


def offered(browser: Browser) -> dict[str, str]:
    """Return the policies of the job form, with what marks the chosen one."""
    text = browser.get("/jobs/new").text
    select = text[text.index('id="container_policy"') :].partition("</select>")[0]
    return {
        name: " selected" if "selected" in option else ""
        for option, name in re.findall(r'(<option[^>]*value="([^"]+)"[^>]*>)', select)
    }
