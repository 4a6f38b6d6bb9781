"""The results of a job in the browser and over REST: lists, previews, downloads, isolation."""

import hashlib
import io
import zipfile
from collections.abc import Callable
from datetime import timedelta

import pytest
from flask import Flask
from sqlalchemy import select, update

from core.db import SessionFactory
from core.errors import UnavailableError
from core.ids import new_id
from core.settings import ServerSettings
from datasets.models import DataConnection, TenantDataSettings
from datasets.parts import record_part
from jobqueue.models import Job
from jobqueue.results.announcements import path_hash
from jobqueue.results.artifacts import expire_results
from jobqueue.results.models import Artifact, ArtifactPart, ResultReport
from portal.presenters.artifacts import TEXT_BYTES
from protocol.datasets import PART_BYTES
from tests.cast import Cast, FrozenClock
from tests.unit.portal.conftest import Browser, portal_in
from tests.unit.portal.world_parts import add_appliance, run_job

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
AddFile = Callable[..., None]


@pytest.fixture
def job_id(sessions: SessionFactory, cast: Cast, clock: FrozenClock) -> str:
    with sessions.begin() as session:
        add_appliance(session, cast, "dgx-01", now=clock.now)
        job = run_job(session, cast, now=clock.now)
        job.outputs = ["/out"]
        return job.id


@pytest.fixture
def add(app: Flask, sessions: SessionFactory, clock: FrozenClock, job_id: str) -> AddFile:
    """Returns what adds a file of several parts to the results of the job."""

    def add_file(path: str, *parts: bytes, connection_id: str | None = None) -> None:
        with sessions.begin() as session:
            job = session.get_one(Job, job_id)
            content = b"".join(parts)
            artifact = Artifact(
                id=new_id(),
                tenant_id=job.tenant_id,
                job_id=job.id,
                attempt_id=job.attempts[0].id,
                path=path,
                path_sha256=path_hash(path),
                size_bytes=len(content),
                sha256=hashlib.sha256(content).hexdigest(),
                modified_at=clock.now,
                uploaded_at=clock.now,
            )
            session.add(artifact)
            session.flush()
            for position, part in enumerate(parts):
                digest = hashlib.sha256(part).hexdigest()
                if connection_id is None:
                    portal_in(app).parts().put(job.tenant_id, digest, part)
                record_part(
                    session,
                    job.tenant_id,
                    digest,
                    len(part),
                    clock.now,
                    connection_id=connection_id,
                )
                session.add(
                    ArtifactPart(
                        artifact_id=artifact.id,
                        position=position,
                        sha256=digest,
                        size_bytes=len(part),
                        tenant_id=job.tenant_id,
                    )
                )

    return add_file


def test_the_files_are_listed_by_prefix_and_page(bob: Browser, add: AddFile, job_id: str) -> None:
    for name in ("b/1", "a", "b/2"):
        add(f"/out/{name}", name.encode())
    first = bob.get(f"/api/v1/jobs/{job_id}/artifacts?prefix=/out/b/&page_size=1").json
    assert first is not None
    assert (first["total"], [item["path"] for item in first["items"]]) == (2, ["/out/b/1"])
    assert first["items"][0]["attempt_number"] == 1
    everything = bob.get(f"/api/v1/jobs/{job_id}/artifacts").json
    assert everything is not None
    assert [item["path"] for item in everything["items"]] == ["/out/a", "/out/b/1", "/out/b/2"]


@pytest.mark.parametrize(
    ("wanted", "status", "content"),
    [
        (None, 200, b"abcdefgh"),
        ("bytes=2-4", 206, b"cde"),
        ("bytes=-2", 206, b"gh"),
        ("bytes=6-", 206, b"gh"),
        ("bytes=9-", 416, b""),
    ],
)
def test_a_file_or_a_range_of_it_is_downloaded(
    *, bob: Browser, add: AddFile, job_id: str, wanted: str | None, status: int, content: bytes
) -> None:
    add('/out/deep/ü "x".html', b"abc", b"def", b"gh")
    path = "/out/deep/%C3%BC%20%22x%22.html"
    headers = {"Range": wanted} if wanted else {}
    answer = bob.get(f"/api/v1/jobs/{job_id}/artifacts/file?path={path}", headers=headers)
    assert (answer.status_code, answer.data) == (status, content)
    if status != 416:
        assert answer.headers["Content-Type"] == "application/octet-stream"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Content-Disposition"].startswith('attachment; filename="_ _x_.html"')


def test_a_folder_is_downloaded_as_an_archive(bob: Browser, add: AddFile, job_id: str) -> None:
    add("/out/a", b"1")
    add("/out/b/c", b"22", b"33")
    add("/out/b/empty")
    answer = bob.get(f"/api/v1/jobs/{job_id}/artifacts/archive?prefix=/out/b/")
    with zipfile.ZipFile(io.BytesIO(answer.data)) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {
            "out/b/c": b"2233",
            "out/b/empty": b"",
        }


def test_a_file_of_a_time_that_archives_cannot_say_is_downloaded(
    bob: Browser, add: AddFile, job_id: str, sessions: SessionFactory, clock: FrozenClock
) -> None:
    add("/out/a.txt", b"content")
    with sessions.begin() as session:
        session.execute(update(Artifact).values(modified_at=clock.now.replace(year=2199)))
    data = bob.get(f"/api/v1/jobs/{job_id}/artifacts/archive").data
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.read("out/a.txt") == b"content"
        assert archive.getinfo("out/a.txt").date_time[0] == 2107


def test_another_tenant_sees_nothing(charlie: Browser, add: AddFile, job_id: str) -> None:
    add("/out/a", b"secret")
    for path in (
        "artifacts",
        "artifacts/file?path=/out/a",
        "artifacts/parts?path=/out/a",
        "artifacts/archive",
    ):
        assert charlie.get(f"/api/v1/jobs/{job_id}/{path}").status_code == 404
    for path in ("results", "results/preview?path=/out/a", "results/image?path=/out/a"):
        assert charlie.get(f"/jobs/{job_id}/{path}").status_code == 404


def test_the_page_shows_folders_files_and_what_is_left_out(
    *, bob: Browser, add: AddFile, job_id: str, sessions: SessionFactory, clock: FrozenClock
) -> None:
    empty = bob.get(f"/jobs/{job_id}/results").text
    assert "No files yet" in empty
    add("/out/checkpoints/step-1.pt", b"x" * 2048)
    add("/out/log.txt", b"hello")
    with sessions.begin() as session:
        job = session.get_one(Job, job_id)
        report = ResultReport(
            attempt_id=job.attempts[0].id,
            tenant_id=job.tenant_id,
            pending_files=3,
            pending_bytes=4096,
            message="Left out: 2 symbolic links.",
            reported_at=clock.now,
        )
        session.add(report)
    page = bob.get(f"/jobs/{job_id}/results").text
    assert "Left out: 2 symbolic links." in page
    assert "3 more (4 KiB) to upload" in page
    assert "checkpoints" in page
    assert "log.txt" in page
    assert "step-1.pt" not in page
    inner = bob.get(f"/jobs/{job_id}/results?folder=/out/checkpoints&file=/out/gone").text
    assert "step-1.pt" in inner
    assert "no longer among the results" in inner


def test_previews_show_text_tables_and_images_and_run_nothing(
    bob: Browser, add: AddFile, job_id: str
) -> None:
    add("/out/page.html", b"<script>alert(1)</script>")
    add("/out/table.csv", b"step,loss\n1,0.5\n2,<b>\n")
    add("/out/plot.png", PNG)
    add("/out/logo.svg", b"<svg onload='alert(1)'/>")
    add("/out/model.pt", bytes(100))

    def preview(name: str) -> str:
        return bob.get(f"/jobs/{job_id}/results/preview?path=/out/{name}").text

    assert "&lt;script&gt;alert(1)" in preview("page.html")
    assert "<th>loss</th>" in preview("table.csv")
    assert "&lt;b&gt;" in preview("table.csv")
    assert "<img" in preview("plot.png")
    assert "<svg" not in preview("logo.svg")
    assert "no preview" in preview("model.pt")
    image = bob.get(f"/jobs/{job_id}/results/image?path=/out/plot.png")
    assert (image.data, image.mimetype) == (PNG, "image/png")
    assert "sandbox" in image.headers["Content-Security-Policy"]
    assert bob.get(f"/jobs/{job_id}/results/image?path=/out/logo.svg").status_code == 422


def test_a_preview_reads_the_beginning_of_a_part_only(
    bob: Browser, add: AddFile, job_id: str, settings: ServerSettings
) -> None:
    part = b"step 1\n" * (PART_BYTES // 7)
    add("/out/train.log", part)
    digest = hashlib.sha256(part).hexdigest()
    [stored] = (settings.data_dir / "data").rglob(digest)
    with stored.open("r+b") as file:
        file.seek(TEXT_BYTES)
        file.write(b"damaged")
    assert "step 1" in bob.get(f"/jobs/{job_id}/results/preview?path=/out/train.log").text
    whole = f"/api/v1/jobs/{job_id}/artifacts/file?path=/out/train.log"
    assert bob.get(whole, headers={"Range": "bytes=7-12"}).data == b"step 1"
    with pytest.raises(UnavailableError, match="is damaged"):  # a whole part is checked
        bob.get(whole)


def test_a_missing_part_is_an_error_that_says_so(
    bob: Browser, add: AddFile, job_id: str, app: Flask, cast: Cast
) -> None:
    add("/out/a.txt", b"content")
    portal_in(app).parts().delete(cast.acme.id, [hashlib.sha256(b"content").hexdigest()])
    answer = bob.get(f"/jobs/{job_id}/results/preview?path=/out/a.txt")
    assert answer.status_code == 200
    assert "There is no part" in answer.text
    assert bob.get(f"/api/v1/jobs/{job_id}/artifacts/file?path=/out/a.txt").status_code == 404


def test_a_file_in_the_tenants_bucket_is_a_signed_redirect(
    *, app: Flask, bob: Browser, add: AddFile, job_id: str, sessions: SessionFactory, cast: Cast,
    clock: FrozenClock,
) -> None:  # fmt: skip
    add("/out/gone.txt", b"gone", connection_id="deleted")
    address = f"/api/v1/jobs/{job_id}/artifacts"
    assert bob.get(f"{address}/file?path=/out/gone.txt").status_code == 503
    with sessions.begin() as session:
        connection = DataConnection(
            tenant_id=cast.acme.id,
            name="bucket",
            url="s3://acme-results/vedette",
            endpoint_url="https://10.0.0.1:9000",
            access_key_id="key",
            secrets=portal_in(app).secrets.encrypt('{"secret_access_key": "hidden-from-all"}'),
            created_at=clock.now,
        )
        session.add(connection)
        session.flush()
        ident = connection.id
    # The tenant has chosen the portal's store since.
    add("/out/a.txt", b"content", connection_id=ident)
    answer = bob.get(f"{address}/file?path=/out/a.txt")
    location = answer.headers["Location"]
    digest = hashlib.sha256(b"content").hexdigest()
    assert answer.status_code == 302
    assert f"/acme-results/vedette/parts/{digest[:2]}/{digest}?" in location
    assert "X-Amz-Signature" in location
    assert "hidden-from-all" not in location
    parts = bob.get(f"{address}/parts?path=/out/a.txt").json
    assert parts is not None
    assert parts["items"][0]["url"].startswith("https://10.0.0.1:9000/")
    # The portal itself does not reach a private address for the tenant.
    shown = bob.get(f"/jobs/{job_id}/results/preview?path=/out/a.txt").text
    assert "private network" in shown


def test_results_expire_by_the_tenants_setting_once_the_job_has_ended(
    *, add: AddFile, job_id: str, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    add("/out/a", b"1")
    later = clock.now + timedelta(days=8)
    with sessions.begin() as session:
        assert expire_results(session, now=later) == 0
        session.add(TenantDataSettings(tenant_id=cast.acme.id, results_retention_days=7))
        session.flush()
        assert expire_results(session, now=later) == 0  # it runs
        session.execute(update(Job).where(Job.id == job_id).values(finished_at=clock.now))
        assert expire_results(session, now=later - timedelta(days=2)) == 0
        assert expire_results(session, now=later) == 1
        assert session.scalars(select(ArtifactPart)).all() == []


def test_output_folders_are_checked(bob: Browser) -> None:
    def errors(outputs: list[str], **fields: object) -> str:
        body = {"name": "x", "image": "busybox", "outputs": outputs, **fields}
        answer = bob.call("POST", "/api/v1/jobs", json=body)
        assert answer.status_code == 422
        assert answer.json is not None
        return " ".join(answer.json["errors"]["outputs"])

    for path in ("relative", "/", "/a/../b", "//a", "/a/./b"):
        assert "not the absolute path" in errors([path])
    assert "of the system" in errors(["/proc/x"])
    assert "overlaps '/a'" in errors(["/a", "/a"])
    assert "overlaps '/a'" in errors(["/a", "/a/b"])
    mount = {"source": "/data", "target": "/a/b"}
    assert "overlaps '/a/b'" in errors(["/a"], mounts=[mount])


def test_the_form_has_output_folders(bob: Browser) -> None:
    assert 'name="outputs"' in bob.get("/jobs/new").text
