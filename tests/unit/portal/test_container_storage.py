"""The storage of an appliance and the cleanup policies, on pages and by REST."""

from typing import Any

from core.db import SessionFactory
from jobqueue.storage.policies import CleanupPolicy, policies_of
from jobqueue.storage.service import record_storage
from protocol.storage import CleanupResult, StoppedContainer, StorageReport, StoredImage
from tests.cast import NOON, Cast
from tests.unit.portal.conftest import Browser
from tests.unit.portal.world import World


def test_a_cleanup_is_seen_and_started(
    *, alice: Browser, bob: Browser, world: World, sessions: SessionFactory
) -> None:
    ident = world.ids["appliance_id"]
    path = f"/appliances/{ident}/storage"
    assert 'class="vd-empty"' in bob.get(path).text
    assert api(bob, path)["reported_at"] is None
    assert alice.call("POST", f"/api/v1{path}/clean").status_code == 409
    report = StorageReport(
        images=[
            StoredImage(image_id="sha256:1", names=["acme/old:1"], used_at_ns=1),
            StoredImage(image_id="sha256:2"),
        ],
        containers=[StoppedContainer(container_id="c1", name="left-over")],
        disk_total_bytes=100,
        disk_free_bytes=40,
        cleanup=CleanupResult(finished_at_ns=1, images=2, errors=["conflict: in use"]),
    )
    with sessions.begin() as session:
        record_storage(session, ident, report, now=NOON)
    text = bob.get(path).text
    assert [word in text for word in ("acme/old:1", "left-over", "conflict: in use")] == [True] * 3
    assert f'action="{path}/clean"' not in text
    assert [image["verdict"] for image in api(bob, path)["images"]] == ["age", "not_of_jobs"]
    assert f'action="{path}/clean"' in alice.get(path).text
    alice.post(f"{path}/clean")
    assert api(bob, path)["requested_at"] is not None
    assert f'action="{path}/clean"' not in alice.get(path).text


def test_a_policy_is_set_for_a_site_and_removed(
    *, alice: Browser, bob: Browser, cast: Cast, sessions: SessionFactory
) -> None:
    path = "/appliances/cleanup-policies"
    assert bob.get(path).status_code == 403
    form: dict[str, object] = {"image_days": 5, "disk_percent": 70, "container_days": 2}
    assert (
        alice.post(f"{path}?site=fra1", form | {"site": "fra1", "image_days": 0}).status_code == 422
    )
    alice.post(f"{path}?site=fra1", form | {"site": "fra1", "is_automatic": "y"})
    with sessions() as session:
        assert policies_of(session, cast.acme.id) == {
            "": CleanupPolicy(),
            "fra1": CleanupPolicy(image_days=5, disk_percent=70, container_days=2),
        }
    alice.post(f"{path}?site=fra1", form | {"site": "fra1", "action": "remove"})
    by_rest = api(alice, f"/tenants/{cast.acme.id}/cleanup-policies")
    assert [policy["site"] for policy in by_rest["policies"]] == [""]


def api(browser: Browser, path: str) -> dict[str, Any]:
    body = browser.get(f"/api/v1{path}").json
    assert isinstance(body, dict)
    return body
