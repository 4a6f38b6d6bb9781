"""Images: the list, the job form that offers them, and the token server without a registry."""

from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from sqlalchemy.orm import Session

from core.db import SessionFactory
from core.settings import ServerSettings
from jobqueue.images.models import Image
from jobqueue.queue.service import submit_job
from protocol.job_spec import JobRequest
from tests.cast import BOX, PASSWORD, Cast, FrozenClock, scope_of
from tests.unit.portal.conftest import Browser, usual_settings
from tests.unit.portal.world_parts import add_appliance, add_image

HOST = "[2001:db8::5]:5000"


@pytest.fixture
def settings(tmp_path: Path) -> ServerSettings:
    return replace(usual_settings(tmp_path), registry_url=f"https://{HOST}")


@pytest.fixture
def image(sessions: SessionFactory, cast: Cast, clock: FrozenClock) -> Image:
    """An image of acme that a waiting job of bob's uses, one of globex, and a shared one."""
    with sessions.begin() as session:
        add_image(session, cast.globex.id, "globex/secret", now=clock.now)
        add_image(session, None, "base/cuda", tag="12", now=clock.now)
        image = add_image(session, cast.acme.id, "acme/train", now=clock.now)
        _submit(session, cast, f"{HOST}/acme/train:1", clock)
    return image


def _submit(session: Session, cast: Cast, name: str, clock: FrozenClock) -> None:
    add_appliance(session, cast, "dgx-01", now=clock.now)
    request = JobRequest(name="train", image=name)
    submit_job(session, scope_of(cast.bob), request, box=BOX, now=clock.now)


def test_a_tenant_sees_its_images_and_the_shared_ones(image: Image, bob: Browser) -> None:
    page = bob.get("/images").text
    assert f"/images/{image.id}" in page
    assert "base/cuda" in page
    assert "globex" not in page
    items = bob.get("/api/v1/images?sort=repository").get_json()["items"]
    assert [(item["reference"], item["jobs"]) for item in items] == [
        (f"{HOST}/acme/train:1", 1),
        (f"{HOST}/base/cuda:12", 0),
    ]
    assert items[0]["layers"] == [{"digest": f"sha256:{1:064}", "size_bytes": 2_999_000}]
    assert bob.get("/api/v1/images?search=cuda").get_json()["total"] == 1


@pytest.mark.usefixtures("image")
def test_the_job_form_offers_them(bob: Browser) -> None:
    form = bob.get(f"/jobs/new?image={HOST}/base/cuda:12").text
    assert f'<option value="{HOST}/acme/train:1">' in form
    assert f'value="{HOST}/base/cuda:12"' in form
    assert "globex/secret" not in form


def test_an_image_that_a_job_needs_is_not_deleted(image: Image, bob: Browser) -> None:
    answer = bob.call("DELETE", f"/api/v1/images/{image.id}")
    assert (answer.status_code, answer.get_json()["code"]) == (409, "image_in_use")


def test_members_do_not_delete_shared_images(
    sessions: SessionFactory, cast: Cast, clock: FrozenClock, bob: Browser, olivia: Browser
) -> None:
    assert cast
    with sessions.begin() as session:
        shared = add_image(session, None, "base/cuda", now=clock.now)
    assert bob.call("DELETE", f"/api/v1/images/{shared.id}").status_code == 403
    # The operator may, but nothing listens at registry.example.
    answer = olivia.call("DELETE", f"/api/v1/images/{shared.id}")
    assert (answer.status_code, answer.get_json()["code"]) == (503, "registry_unavailable")


@pytest.mark.usefixtures("cast")
def test_wrong_credentials_are_reported_in_the_registrys_format(nobody: Browser) -> None:
    client = nobody.client
    for password in (None, "wrong", "vdt_wrong"):
        auth = None if password is None else ("bob@acme.example", password)
        answer = client.get("/api/registry/token?service=vedette", auth=auth)
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"].startswith("Basic")
        assert answer.get_json()["errors"][0]["code"] == "UNAUTHORIZED"
    answer = client.get("/api/registry/token?service=other", auth=("bob@acme.example", PASSWORD))
    assert answer.status_code == 422
    assert client.post("/api/registry/notifications", json={"events": []}).status_code == 401


@pytest.mark.parametrize(
    "name",
    ["acme/../globex/x", "acme/./x", "acme//x", "/acme/x", "acme/x/", "Acme/x", "acme/%2e%2e/x"],
)
@pytest.mark.usefixtures("cast")
def test_a_name_that_is_not_canonical_gets_no_token(nobody: Browser, name: str) -> None:
    address = f"/api/registry/token?scope=repository:{quote(name)}:pull"
    answer = nobody.client.get(address, auth=("bob@acme.example", PASSWORD))
    assert answer.status_code == 422, answer.text
    assert "is not the name of a repository" in answer.text
