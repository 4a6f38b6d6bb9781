"""Contents of datasets for users: nobody reads or writes those of others."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import requests

from core.db import SessionFactory
from protocol.manifests import ManifestWriter, content_hash
from tenants.models import User
from tenants.users.tokens import TokenLimits, create_api_token
from tests.cast import Cast, FrozenClock, scope_of

Call = Callable[..., requests.Response]


@pytest.fixture
def call_as(sessions: SessionFactory, url: str, clock: FrozenClock) -> Callable[..., Call]:
    """Return a function that calls the API as a user."""

    def as_user(user: User, *scopes: str) -> Call:
        with sessions.begin() as session:
            secret = create_api_token(
                session, scope_of(user), name="x", limits=TokenLimits(scopes), now=clock.now
            )[1]

        def call(method: str, path: str, **details: Any) -> requests.Response:  # noqa: ANN401 - those of requests
            headers = {"Authorization": f"Bearer {secret}"}
            return requests.request(
                method, f"{url}/api/v1{path}", headers=headers, timeout=60, **details
            )

        return call

    return as_user


def test_contents_are_for_those_who_may(call_as: Callable[..., Call], cast: Cast, url: str) -> None:
    alice = call_as(cast.alice)
    dataset = alice("POST", "/datasets", json={"name": "images"}).json()
    version = alice("POST", f"/datasets/{dataset['id']}/versions", json={}).json()
    base, part = f"/dataset-versions/{version['id']}", content_hash(b"abc")
    writer = ManifestWriter()
    pages = [*writer.add("a", 3, [b"abc"]), *writer.finish()]
    head = {
        "file_count": 1,
        "total_bytes": 3,
        "pages": [msgspec.to_builtins(pages[0].entry)],
    }
    bob, reader, charlie = call_as(cast.bob), call_as(cast.alice, "read"), call_as(cast.charlie)
    put: dict[str, Any] = {"method": "PUT", "path": f"{base}/parts/{part}", "data": b"abc"}
    assert [call(**put).status_code for call in (bob, reader, charlie)] == [403, 403, 404]
    assert (
        requests.put(f"{url}/api/v1{base}/parts/{part}", data=b"abc", timeout=60).status_code == 401
    )
    assert alice("PUT", f"{base}/pages/{pages[0].entry.sha256}", data=pages[0].data).ok
    answer = alice("PUT", f"{base}/head", json=head)
    assert (answer.status_code, answer.json()["code"]) == (409, "parts_missing")
    assert answer.json()["errors"]["missing"] == [part]
    assert alice(**put).ok
    assert alice("PUT", f"{base}/head", json=head).json()["number"] == 1
    assert [call("GET", f"{base}/parts/{part}").status_code for call in (bob, reader)] == [200, 200]
    for path in (f"/parts/{part}", "/head", f"/pages/{pages[0].entry.sha256}", "/files"):
        assert charlie("GET", f"{base}{path}").status_code == 404
    assert alice("GET", f"{base}/parts/{'0' * 64}").status_code == 404
    assert alice(**put).json()["code"] == "version_closed"
    listed = bob("GET", f"{base}/files").json()
    assert [(file["path"], file["sha256"]) for file in listed["items"]] == [("a", part)]
