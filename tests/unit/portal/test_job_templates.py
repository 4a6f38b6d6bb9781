"""Job templates in the browser."""

from tests.unit.portal.conftest import Browser
from tests.unit.portal.test_job_pages import FORM


def test_a_template_is_used_saved_and_deleted(bob: Browser, alice: Browser) -> None:
    listed = bob.get("/jobs/templates").text
    assert "jupyterlab" in listed
    assert "/delete" not in listed
    filled = bob.get("/jobs/new?template=jupyterlab").text
    assert 'value="quay.io/jupyter/pytorch-notebook:cuda12-latest"' in filled
    assert "web=8888" in filled

    saved = bob.post("/jobs/new", {**FORM, "name": "tune", "save": "1", "secrets": "A=hidden"})
    assert saved.headers["Location"] == "/jobs/templates"
    duplicate = bob.post("/jobs/new", {**FORM, "name": "tune", "save": "1"})
    assert duplicate.status_code == 409
    assert 'id="name-error"' in duplicate.text
    (template,) = [
        item
        for item in alice.get("/api/v1/job-templates").get_json()["items"]
        if not item["is_shipped"]
    ]
    assert (template["name"], template["user_email"]) == ("tune", "bob@acme.example")
    assert template["job"]["env"] == {"EPOCHS": "10", "DATA": "/data"}
    assert "hidden" not in str(template)
    assert bob.get("/api/v1/jobs").get_json()["total"] == 0
    used = alice.get(f"/jobs/new?template={template['id']}").text
    assert "EPOCHS=10" in used

    answer = alice.post(f"/jobs/templates/{template['id']}/delete")
    assert answer.status_code == 302
    assert bob.get("/jobs/new?template=tune").status_code == 404


def test_the_api_replaces_templates_and_keeps_those_that_ship(bob: Browser) -> None:
    body = {"name": "tune", "job": {"name": "t", "image": "acme/t:1", "memory_bytes": "2GiB"}}
    ident = bob.call("POST", "/api/v1/job-templates", body).get_json()["id"]
    body["job"] = {"name": "t", "image": "acme/t:2"}
    assert bob.call("PATCH", f"/api/v1/job-templates/{ident}", body).status_code == 200
    assert bob.get("/api/v1/job-templates/tune").get_json()["job"]["image"] == "acme/t:2"
    assert bob.call("DELETE", "/api/v1/job-templates/jupyterlab").status_code == 409
    assert bob.call("DELETE", f"/api/v1/job-templates/{ident}").status_code == 204
