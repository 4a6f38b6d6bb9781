"""Pages of projects: an admin makes a tree with members and quotas, members see it."""

from core.db import SessionFactory
from jobqueue.projects.models import Project
from tests.cast import Cast
from tests.unit.jobqueue.builders import add_appliance
from tests.unit.portal.conftest import Browser


def test_an_admin_makes_a_project_with_members_and_quotas(
    alice: Browser, bob: Browser, sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        add_appliance(session, cast.acme, "dgx-01")
    assert "No projects yet" in bob.get("/projects").text
    assert "Create project" not in bob.get("/projects").text
    form = {"name": "vision", "parent": "", "shares": "3", "budget_label": "CC-1"}
    path = alice.post("/projects", form).headers["Location"]
    added = {"user": "bob@acme.example", "user_shares": "2", "is_default": "y"}
    assert alice.post(f"{path}/members", added).status_code == 302
    quota = {"resource": "gpus", "guaranteed": "4", "borrowing_limit": "2"}
    assert alice.post(f"{path}/quotas", quota).status_code == 302
    assert alice.post(f"{path}/quotas", {"resource": "memory_bytes", "maximum": "64 GiB"})
    page = bob.get(path).text
    for text in ("bob@acme.example", "4 guaranteed", "up to 2", "at most 64 GiB", "CC-1"):
        assert text in page
    assert "Save quota" not in page
    assert "vision" in bob.get("/projects").text
    assert 'name="project"' in bob.get("/jobs/new").text
    job = {"name": "train", "image": "x/y:1", "project": path.rpartition("/")[2]}
    submitted = bob.post("/jobs/new", job | FIELDS)
    assert "vision" in bob.get(submitted.headers["Location"]).text
    assert "train" in bob.get("/jobs?project=vision").text
    assert "train" not in bob.get("/jobs?project=audio").text


def test_what_can_t_work_is_told_at_its_field(
    alice: Browser, sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        add_appliance(session, cast.acme, "dgx-01")
    path = alice.post("/projects", {"name": "vision", "parent": "", "shares": "1"}).location
    for posted, fields, text in (
        ("/projects", {"name": "vision", "parent": "", "shares": "1"}, "already"),
        (f"{path}/quotas", {"resource": "gpus", "guaranteed": "9"}, "enter at most 8"),
        (f"{path}/quotas", {"resource": "gpus", "maximum": "many"}, "such as 8"),
        (f"{path}/members", {"user": "eve@x.example", "user_shares": "1"}, "Invite them"),
        (path, {"name": "", "parent": "", "shares": "0"}, "Enter a name"),
    ):
        refused = alice.post(posted, fields)
        assert refused.status_code in {409, 422}
        assert text in refused.text
    assert alice.post(f"{path}/archive", {}).status_code == 302
    assert "archived" in alice.get("/projects").text
    with sessions() as session:
        assert session.query(Project).one().archived_at is not None


FIELDS = {"kind": "batch", "gpus": "1", "cpus": "1", "memory": "1 GiB"} | {
    "container_policy": "restricted"
}
