"""Secret variables of jobs in the browser and by REST: their values are never shown again."""

import hashlib
import json
import logging
from pathlib import Path
from zipfile import ZipFile

import pytest
from sqlalchemy import select

from core.db import SessionFactory
from jobqueue.logs.log_files import LogFiles
from jobqueue.models import Job
from tenants.lifecycle.archive import Archive
from tenants.models import AuditEntry, IdempotencyKey
from tests.cast import Cast
from tests.unit.portal.conftest import Browser
from tests.unit.portal.test_job_pages import FORM
from timeseries.store import Store

VALUE = "correct-horse-battery"
BODY: dict[str, object] = {
    "name": "train",
    "image": "a/b:1",
    "env": {"EPOCHS": "3", "PLAIN": "staple"},
    "secrets": {"HF_TOKEN": VALUE},
}
CPU_FORM = {**FORM, "gpus": "0", "gpu_memory": ""}

pytestmark = pytest.mark.usefixtures("cast")


def submitted(browser: Browser, **changes: object) -> dict[str, object]:
    answer = browser.call("POST", "/api/v1/jobs", json={**BODY, **changes})
    assert answer.status_code == 201, answer.text
    assert VALUE not in answer.text
    assert answer.json is not None
    return dict(answer.json)


def test_no_answer_and_no_page_has_the_value(
    bob: Browser, alice: Browser, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        job = submitted(bob)
        ident = job["id"]
        paths = (
            "/api/v1/jobs", f"/api/v1/jobs/{ident}", f"/api/v1/jobs/{ident}/events", "/jobs",
            f"/jobs/{ident}", f"/jobs/new?copy={ident}", f"/dashboards/jobs/{ident}",
        )  # fmt: skip
        audit = (
            "/audit",
            "/audit/export?format=csv",
            "/audit/export?format=jsonl",
            "/api/v1/audit",
        )
        answers = [bob.get(path) for path in paths] + [alice.get(path) for path in audit]

    assert job["secret_names"] == ["HF_TOKEN"]
    assert {answer.status_code for answer in answers} == {200}
    assert [answer.request.path for answer in answers if VALUE in answer.text] == []
    assert "HF_TOKEN" in answers[4].text
    assert VALUE not in caplog.text


def test_an_idempotent_request_stores_no_value(bob: Browser, sessions: SessionFactory) -> None:
    headers = {"Idempotency-Key": "once", "X-CSRFToken": bob.token()}
    for _ in range(2):
        answer = bob.client.post("/api/v1/jobs", json=BODY, headers=headers)
        assert answer.status_code == 201
        assert VALUE not in answer.text
    with sessions() as session:
        assert len(session.scalars(select(Job)).unique().all()) == 1


def test_the_form_submits_secrets(bob: Browser) -> None:
    answer = bob.post("/jobs/new", {**CPU_FORM, "secrets": f"HF_TOKEN={VALUE}\nOTHER=x=y"})
    job = bob.get(f"/api/v1{answer.headers['Location']}").json
    assert job is not None
    assert job["secret_names"] == ["HF_TOKEN", "OTHER"]


@pytest.mark.parametrize(
    "changes",
    [
        {"secrets": f"HF_TOKEN={VALUE}", "name": ""},
        {"secrets": f"HF TOKEN={VALUE}"},
        {"secrets": f"{VALUE}"},
        {"secrets": f"EPOCHS={VALUE}"},
    ],
)
def test_a_faulty_form_does_not_show_them_again(bob: Browser, changes: dict[str, object]) -> None:
    answer = bob.post("/jobs/new", {**CPU_FORM, **changes})
    assert answer.status_code == 422
    assert VALUE not in answer.text
    assert 'id="secrets-error"' in answer.text


def test_a_faulty_body_does_not_return_them(bob: Browser) -> None:
    for wrong in ({"secrets": {"HF TOKEN": VALUE}}, {"secrets": [VALUE]}, {"image": ""}):
        answer = bob.call("POST", "/api/v1/jobs", json={**BODY, **wrong})
        assert answer.status_code == 422
        assert VALUE not in answer.text


def test_a_plain_variable_becomes_secret_on_the_page_and_by_rest(
    bob: Browser, sessions: SessionFactory
) -> None:
    job = submitted(bob)
    page = f"/jobs/{job['id']}"
    assert "staple" in bob.get(page).text

    assert bob.post(f"{page}/make-secret", {"name": "PLAIN"}).status_code == 302
    answer = bob.call("POST", f"/api/v1{page}/make-secret", json={"names": ["EPOCHS"]})

    assert answer.json is not None
    assert answer.json["env"] == {}
    assert answer.json["secret_names"] == ["EPOCHS", "HF_TOKEN", "PLAIN"]
    assert "staple" not in bob.get(page).text
    with sessions() as session:
        entries = session.scalars(select(AuditEntry).filter_by(action="job.made_secret")).all()
        assert [entry.after for entry in entries] == [
            {"secret_names": ["HF_TOKEN", "PLAIN"]},
            {"secret_names": ["EPOCHS", "HF_TOKEN", "PLAIN"]},
        ]


def test_the_copy_form_has_all_but_the_values_of_secrets(bob: Browser) -> None:
    job = submitted(bob, cpus=2.5)
    form = bob.get(f"/jobs/new?copy={job['id']}").text
    assert 'value="a/b:1"' in form
    assert 'value="2.5"' in form
    assert "PLAIN=staple" in form
    assert "HF_TOKEN" in form

    answer = bob.post(
        f"/jobs/new?copy={job['id']}", {**CPU_FORM, "secrets_from": str(job["id"]), "secrets": ""}
    )

    copy = bob.get(f"/api/v1{answer.headers['Location']}").json
    assert copy is not None
    assert copy["secret_names"] == ["HF_TOKEN"]


def test_another_user_copies_a_job_without_its_secrets(alice: Browser, bob: Browser) -> None:
    job = submitted(bob)
    assert str(job["id"]) not in alice.get(f"/jobs/new?copy={job['id']}").text.partition("<main")[2]
    answer = alice.call("POST", "/api/v1/jobs", json={**BODY, "secrets_from": job["id"]})
    assert answer.status_code == 403


def test_the_export_of_a_tenant_has_no_secrets(
    bob: Browser, cast: Cast, sessions: SessionFactory, store: Store, tmp_path: Path
) -> None:
    submitted(bob)
    path = tmp_path / "acme.zip"
    logs = LogFiles(str(tmp_path / "logs"))
    Archive(sessions, store, logs, cast.acme.id).write(path, progress=lambda _done, _total: None)
    with ZipFile(path) as archive:
        content = b"".join(archive.read(name) for name in archive.namelist())
    assert b"HF_TOKEN" in content
    assert b"secret_env" not in content
    assert VALUE.encode() not in content


def test_the_stored_hash_of_a_request_is_no_help_in_guessing(
    bob: Browser, cast: Cast, sessions: SessionFactory
) -> None:
    headers = {"Idempotency-Key": "once", "X-CSRFToken": bob.token()}
    body = json.dumps(BODY).encode()
    bob.client.post("/api/v1/jobs", data=body, headers=headers, content_type="application/json")

    head = f"POST /api/v1/jobs? {cast.acme.id}\n"
    plain = hashlib.sha256(head.encode() + body).hexdigest()
    with sessions() as session:
        stored = session.scalars(select(IdempotencyKey.request_hash)).one()
        assert len(stored) == len(plain)
        assert stored != plain
