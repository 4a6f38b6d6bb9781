"""`vedette dataset`: upload, list, download and delete, against a whole server."""

import os
from pathlib import Path

import pytest
from sqlalchemy import func, select

from core.db import SessionFactory
from datasets.models import DataConnection, DataPart, DatasetVersion, VersionState
from tests.cast import Cast
from tests.fixtures.in_process import run_vedette
from tests.unit.cli.conftest import EnvironOf
from tests.unit.jobqueue.builders import add_appliance
from vedette.client import Client
from vedette.datasets import upload_version

SOURCE = "s3://acme-data/imagenet"


@pytest.fixture
def environ(cast: Cast, environ_of: EnvironOf) -> dict[str, str]:
    """Alice's."""
    return environ_of(cast.alice)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with files of several kinds."""
    folder = tmp_path / "images"
    (folder / "cats").mkdir(parents=True)
    for number in range(30):
        (folder / "cats" / f"{number:02}.bin").write_bytes(os.urandom(2000 + number))
    (folder / "cats-and-dogs.txt").write_text("both")
    (folder / "empty").touch()
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    return folder


def run(environ: dict[str, str], *words: str, status: int = 0) -> str:
    """Run a command and return what it prints."""
    done = run_vedette("dataset", *words, environ=environ)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_what_was_uploaded_is_downloaded(
    environ: dict[str, str], folder: Path, tmp_path: Path
) -> None:
    printed = run(environ, "upload", "cats", str(folder))
    assert "cats@1: 33 files" in printed
    assert "cats-and-dogs.txt" in run(environ, "files", "cats", "--prefix", "cats-")
    assert "33 files" in run(environ, "download", "cats", str(tmp_path / "copy"))
    copied = {path.relative_to(tmp_path / "copy") for path in (tmp_path / "copy").rglob("*")}
    assert copied == {path.relative_to(folder) for path in folder.rglob("*")}
    for path in (path for path in folder.rglob("*") if path.is_file()):
        assert (tmp_path / "copy" / path.relative_to(folder)).read_bytes() == path.read_bytes()
    assert os.access(tmp_path / "copy" / "run.sh", os.X_OK)
    (tmp_path / "copy" / "cats" / "07.bin").unlink()
    assert "33 files" in run(environ, "download", "cats@1", str(tmp_path / "copy"))
    assert (tmp_path / "copy" / "cats" / "07.bin").exists()


def test_a_second_version_sends_only_what_changed(
    environ: dict[str, str], folder: Path, sessions: SessionFactory
) -> None:
    run(environ, "upload", "cats", str(folder))
    assert "0 B sent" in run(environ, "upload", "cats", str(folder))
    (folder / "new.bin").write_bytes(os.urandom(500))
    assert "cats@3: 34 files" in run(environ, "upload", "cats", str(folder))
    lines = run(environ, "show", "cats").splitlines()
    assert [line.split()[:3] for line in lines[2:]] == [
        ["3", "ready", "34"],
        ["2", "ready", "33"],
        ["1", "ready", "33"],
    ]
    assert lines[-1].split()[-1] == lines[-2].split()[-1]  # the same files, the same digest
    with sessions() as session:
        assert session.scalar(select(func.count()).select_from(DataPart)) == 4


def test_an_upload_that_was_killed_half_way_goes_on(
    environ: dict[str, str],
    folder: Path,
    sessions: SessionFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (folder / "large.bin").write_bytes(os.urandom(70 * 2**20))
    run(environ, "upload", "cats", str(folder / "run.sh"))
    with Client(environ["VEDETTE_URL"], environ["VEDETTE_TOKEN"]) as client:
        dataset_id = client.get("/datasets")["items"][0]["id"]
        sent: list[str] = []
        send = client.send_bytes

        def killed(path: str, data: bytes) -> object:
            if "/parts/" in path and len(sent) == 1:
                raise KeyboardInterrupt
            sent.append(path)
            return send(path, data)

        monkeypatch.setattr(client, "send_bytes", killed)
        with pytest.raises(KeyboardInterrupt):
            upload_version(client, dataset_id, folder, parallel=1)
        monkeypatch.setattr(client, "send_bytes", send)
        resumed: list[int] = []
        version = upload_version(
            client,
            dataset_id,
            folder,
            report=lambda progress: resumed.append(progress.sent_bytes),
        )
    assert (version["number"], version["state"]) == (2, "ready")
    assert 0 < resumed[-1] < version["total_bytes"]
    with sessions() as session:
        assert session.scalar(select(func.count()).select_from(DatasetVersion)) == 2


def test_what_is_no_file_stops_an_upload(environ: dict[str, str], folder: Path) -> None:
    (folder / "link").symlink_to(folder / "cats")
    assert "link is a link to a folder" in run(
        environ, "upload", "cats", str(folder), status=1
    ).replace("\n", " ")
    (folder / "link").unlink()
    (folder / "new\nline").touch()
    assert "Rename it" in run(environ, "upload", "cats", str(folder), status=1)


def test_a_source_is_added_with_its_connection(
    environ: dict[str, str], sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        add_appliance(session, cast.acme, "dgx-01", can_stage=True)
    keys = environ | {"AWS_SECRET_ACCESS_KEY": "hidden", "AWS_SESSION_TOKEN": ""}
    words = ("connection", "add", "minio", "s3://acme-data", "--access-key-id", "AKIA")
    run(keys, *words)
    run(environ, "add", "imagenet", SOURCE, "--connection", "minio", "--no-wait")
    assert "indexing" in run(environ, "show", "imagenet")
    assert "is for s3://acme-data" in run(
        environ, "add", "b", "s3://other/x", "--connection", "minio", status=1
    )
    assert "Datasets use minio" in run(environ, "connection", "delete", "minio", status=1)
    listed = run(environ, "connection", "list", "-o", "json")
    assert "hidden" not in listed
    assert '"has_secrets": true' in listed
    with sessions() as session:
        stored = session.scalars(select(DataConnection.secrets)).one()
    assert stored is not None
    assert "hidden" not in stored


def test_only_uploads_are_downloaded(
    environ: dict[str, str], sessions: SessionFactory, cast: Cast, tmp_path: Path
) -> None:
    with sessions.begin() as session:
        add_appliance(session, cast.acme, "dgx-01", can_stage=True)
    run(environ, "add", "imagenet", SOURCE, "--no-wait")
    with sessions.begin() as session:
        session.scalars(select(DatasetVersion)).one().state = VersionState.READY
    assert "Only uploads" in run(environ, "download", "imagenet", str(tmp_path), status=1)


def test_a_dataset_and_a_version_are_deleted(environ: dict[str, str], folder: Path) -> None:
    run(environ, "upload", "cats", str(folder))
    run(environ, "upload", "cats", str(folder))
    assert run(environ, "delete", "cats@2", "--yes") == "cats@2 deleted\n"
    assert "cats@3" in run(environ, "upload", "cats", str(folder))
    run(environ, "delete", "cats", "--yes")
    assert "No datasets" in run(environ, "list")
