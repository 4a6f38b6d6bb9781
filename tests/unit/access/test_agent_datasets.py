"""Datasets in the agent API: the reading agent makes a version, its tenant's agents read it."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
import requests
from sqlalchemy import select

from access.part_transfers import MAX_RANGE_BYTES, MAX_TRANSFERS_PER_TENANT
from core.db import SessionFactory
from datasets.catalog import (
    DatasetRequest,
    VersionRequest,
    cancel_version,
    create_dataset,
    create_version,
)
from datasets.models import DataPart, DatasetVersion, VersionState
from protocol.datasets import IndexResult, ManifestHead
from protocol.manifests import (
    ManifestWriter,
    StoredPage,
    content_hash,
    decode_page,
    head_digest,
)
from tenants.models import Appliance
from tests.cast import NOON, Cast, make_appliance, scope_of
from tests.unit.access.conftest import OTHER_SECRET, AgentAPI
from tests.unit.jobqueue.builders import add_appliance

SECOND_SECRET = "vda_acme_dgx-02"


@pytest.fixture
def version(sessions: SessionFactory, cast: Cast, dgx: Appliance) -> DatasetVersion:
    """A version that dgx-01 reads."""
    with sessions.begin() as session:
        add_appliance(session, cast.acme, "dgx-02")
        request = DatasetRequest(name="images", source_url="s3://acme/images")
        dataset = create_dataset(session, scope_of(cast.alice), request, now=NOON)
        [version] = dataset.versions
        version.indexing_appliance_id = dgx.id
        return version


def manifest(*paths: str) -> tuple[ManifestHead, list[StoredPage]]:
    """Return a manifest of small files."""
    writer = ManifestWriter()
    pages = [page for path in paths for page in writer.add(path, 2, [b"ab"])]
    pages += writer.finish()
    return writer.head(), pages


def send_pages(api: AgentAPI, version: DatasetVersion, pages: list[StoredPage]) -> None:
    for page in pages:
        path = f"/agent/v1/datasets/{version.id}/pages/{page.entry.sha256}"
        assert api.request("PUT", path, data=page.data).status_code == 204


def send_head(api: AgentAPI, version: DatasetVersion, head: ManifestHead) -> requests.Response:
    body = msgspec.json.encode(IndexResult(head=head))
    return api.request("POST", f"/agent/v1/datasets/{version.id}/head", data=body)


def stored(sessions: SessionFactory, version: DatasetVersion) -> DatasetVersion:
    with sessions() as session:
        return session.get_one(DatasetVersion, version.id)


def test_the_reading_agent_makes_a_version_that_others_read(
    api: AgentAPI, version: DatasetVersion, sessions: SessionFactory
) -> None:
    head, pages = manifest("a", "b/c")
    send_pages(api, version, pages)
    send_pages(api, version, pages)
    assert send_head(api, version, head).status_code == 204
    assert send_head(api, version, head).status_code == 204
    made = stored(sessions, version)
    assert (made.state, made.digest) == (VersionState.READY, head_digest(head))
    assert (made.file_count, made.total_bytes, made.parts_stored) == (2, 4, False)
    with AgentAPI.open(api.url, api.app, secret=SECOND_SECRET) as second:
        answer = second.request("GET", f"/agent/v1/datasets/{version.id}/head")
        assert msgspec.json.decode(answer.content, type=ManifestHead) == head
        sha256 = head.pages[0].sha256
        answer = second.request("GET", f"/agent/v1/datasets/{version.id}/pages/{sha256}")
        assert [file.path for file in decode_page(answer.content, sha256).files] == ["a", "b/c"]


def test_other_agents_write_nothing_and_other_tenants_see_nothing(
    api: AgentAPI, version: DatasetVersion, sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        make_appliance(session, cast.globex, "stranger")
    head, pages = manifest("a")
    send_pages(api, version, pages)
    page_path = f"/agent/v1/datasets/{version.id}/pages/{pages[0].entry.sha256}"
    with AgentAPI.open(api.url, api.app, secret=SECOND_SECRET) as second:
        answer = second.request("PUT", page_path, data=pages[0].data)
        assert (answer.status_code, answer.json()["code"]) == (409, "not_indexing")
        assert send_head(second, version, head).status_code == 409
    send_head(api, version, head)
    with AgentAPI.open(api.url, api.app, secret=OTHER_SECRET) as other:
        for method, path in (
            ("GET", f"/agent/v1/datasets/{version.id}/head"),
            ("GET", page_path),
            ("GET", f"/agent/v1/parts/{pages[0].entry.sha256}"),
            ("PUT", page_path),
        ):
            answer = other.request(method, path, data=pages[0].data if method == "PUT" else None)
            assert answer.status_code == 404, (method, path)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"no page", 422, "wrong_hash"),
        (b"", 422, "invalid_input"),
        (bytes(5 * 2**20), 413, "too_large"),
    ],
)
def test_a_page_that_is_another_or_too_large_is_refused(
    api: AgentAPI, version: DatasetVersion, body: bytes, status: int, code: str
) -> None:
    path = f"/agent/v1/datasets/{version.id}/pages/{'0' * 64}"
    answer = api.request("PUT", path, data=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_a_head_with_a_hostile_page_is_refused(
    api: AgentAPI, version: DatasetVersion, sessions: SessionFactory
) -> None:
    head, _ = manifest("a")
    assert send_head(api, version, head).status_code == 404  # its page is not there
    noise = os.urandom(100)
    path = f"/agent/v1/datasets/{version.id}/pages/{content_hash(noise)}"
    api.request("PUT", path, data=noise)
    entry = msgspec.structs.replace(head.pages[0], sha256=content_hash(noise))
    answer = send_head(api, version, msgspec.structs.replace(head, pages=[entry]))
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_manifest")
    wrong = msgspec.structs.replace(head, file_count=5)
    assert "sums of its pages" in send_head(api, version, wrong).json()["message"]
    assert stored(sessions, version).state is VersionState.INDEXING


def test_a_cancelled_version_does_not_become_ready(
    api: AgentAPI, version: DatasetVersion, sessions: SessionFactory, cast: Cast
) -> None:
    head, pages = manifest("a")
    send_pages(api, version, pages)
    with sessions.begin() as session:
        cancel_version(session, scope_of(cast.alice), version.id)
    assert send_head(api, version, head).status_code == 409
    assert stored(sessions, version).state is VersionState.FAILED


def test_parts_of_results_are_stored_for_the_tenant(
    api: AgentAPI, dgx: Appliance, sessions: SessionFactory
) -> None:
    data = os.urandom(1000)
    path = f"/agent/v1/parts/{content_hash(data)}"
    with ThreadPoolExecutor(MAX_TRANSFERS_PER_TENANT) as pool:
        answers = list(pool.map(lambda _: api.request("PUT", path, data=data), range(4)))
    assert {answer.status_code for answer in answers} == {204}
    assert api.request("GET", path).content == data
    for asked, status, content in (
        ("bytes=10-19", 206, data[10:20]),
        ("bytes=990-1500", 206, data[990:]),
        ("bytes=5-2", 200, data),
        (f"bytes=0-{MAX_RANGE_BYTES}", 200, data),
    ):
        answer = api.request("GET", path, headers={"Range": asked})
        assert (answer.status_code, answer.content) == (status, content), asked
    assert api.request("GET", path, headers={"Range": "bytes=1000-1009"}).status_code == 416
    with sessions() as session:
        [part] = session.scalars(select(DataPart))
    assert (part.tenant_id, part.size_bytes) == (dgx.tenant_id, 1000)
    assert api.request("GET", f"/agent/v1/parts/{'1' * 64}").status_code == 404
    assert api.request("GET", "/agent/v1/parts/nonsense").status_code == 422


def test_a_body_without_its_size_is_refused(api: AgentAPI, dgx: Appliance) -> None:
    assert dgx
    answer = api.request("PUT", f"/agent/v1/parts/{'0' * 64}", data=iter([b"x"]))
    assert (answer.status_code, answer.json()["code"]) == (411, "length_required")


def test_an_agent_gets_the_parts_of_uploads(
    api: AgentAPI, dgx: Appliance, sessions: SessionFactory, cast: Cast
) -> None:
    data: dict[str, Any] = {}
    writer = ManifestWriter(lambda part, content: data.update({part.sha256.hex(): content}))
    pages = [*writer.add("a", 3, [b"abc"]), *writer.finish()]
    scope = scope_of(cast.alice)
    with sessions.begin() as session:
        dataset = create_dataset(session, scope, DatasetRequest(name="up"), now=NOON)
        version = create_version(session, scope, dataset.id, VersionRequest(), now=NOON)
    assert dgx
    [(sha256, content)] = data.items()
    assert api.request("PUT", f"/agent/v1/parts/{sha256}", data=content).status_code == 204
    assert api.request("GET", f"/agent/v1/parts/{sha256}").content == b"abc"
    answer = api.request("GET", f"/agent/v1/datasets/{version.id}/head")
    assert (answer.status_code, answer.json()["code"]) == (409, "version_not_ready")
    send = f"/agent/v1/datasets/{version.id}/pages/{pages[0].entry.sha256}"
    assert api.request("PUT", send, data=pages[0].data).status_code == 409
