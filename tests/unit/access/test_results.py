"""Agents upload and restore results over the agent API, with the code that agents run."""

import os
import socket
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import pytest
from sqlalchemy import delete, select

from collector.results.client import PartClient
from collector.results.folders import Folder, Folders
from collector.results.restoring import Restore
from collector.results.scanning import scan
from collector.results.settings import ResultSettings
from collector.results.uploads import UnknownAttemptError, Uploads
from collector.sending.access_points import AccessPoints
from collector.sending.byte_rate import ByteRate
from collector.sending.portal_connection import PortalConnection
from core.clock import to_ns, utc_now
from core.db import SessionFactory
from core.ids import new_id
from jobqueue.jobs.transitions import move_attempt
from jobqueue.models import Attempt, Job
from jobqueue.results.models import Artifact, ResultReport
from jobqueue.states import AttemptState
from protocol.datasets import PART_BYTES
from protocol.results import ResultFile, ResultPart, ResultUpload
from tests.cast import Cast, FrozenClock
from tests.unit.access.conftest import AgentAPI
from tests.unit.jobqueue.builders import add_appliance, dispatch, submit

MIB = 2**20


@dataclass
class Site:
    """An agent on dgx-02 with an attempt of a job that has the output folder /out."""

    url: str
    folder: Path
    sessions: SessionFactory
    job_id: str
    attempt_id: str
    settings: ResultSettings = field(default_factory=ResultSettings)
    clients: list[PartClient] = field(default_factory=list)

    def client(self, appliance: str = "dgx-02") -> PartClient:
        """Return a connection of an agent."""
        portal = PortalConnection(AccessPoints([self.url]), agent_token=f"vda_acme_{appliance}")
        self.clients.append(PartClient(portal, ByteRate(0)))
        return self.clients[-1]

    def output(self, attempt_id: str = "") -> Folder:
        """Return the folders of an attempt, as they are made or found."""
        folders = Folders(self.folder)
        made = [folder for folder in folders.load() if folder.attempt_id == attempt_id]
        ident = attempt_id or self.attempt_id
        return made[0] if made else folders.create(ident, self.job_id, ["/out"])

    def uploads(self, folder: Folder, **settings: object) -> Callable[..., bool]:
        """Return what uploads the changes of a folder."""
        made = Uploads(
            folder,
            self.client(),
            ResultSettings(**{"settle_seconds": 0.0, **settings}),  # type: ignore[arg-type]
            stop=Event(),
            now_ns=lambda: to_ns(utc_now()),
        )

        def sync(*, is_final: bool = False) -> bool:
            return made.sync(scan(folder.pairs()), is_final=is_final)

        return sync

    def stored(self) -> dict[str, int]:
        """Return the sizes of the job's artifacts by path."""
        with self.sessions() as session:
            rows = session.execute(
                select(Artifact.path, Artifact.size_bytes).where(Artifact.job_id == self.job_id)
            )
            return {path: size for path, size in rows}  # noqa: C416 - rows, not pairs

    def message(self) -> str:
        """Return what the agent says of what is left out."""
        with self.sessions() as session:
            report = session.get(ResultReport, self.attempt_id)
            return report.message if report else ""


@pytest.fixture
def site(
    api: AgentAPI, sessions: SessionFactory, cast: Cast, clock: FrozenClock, tmp_path: Path
) -> Iterator[Site]:
    with sessions.begin() as session:
        add_appliance(session, cast.acme, "dgx-02", can_keep_results=True)
        job = submit(session, cast.alice, "train", outputs=["/out"])
        dispatch(session, now=clock.now)
        session.refresh(job)
        assert job.attempt is not None
        ids = job.id, job.attempt.id
    folder = tmp_path / "agent"
    folder.mkdir()
    site = Site(api.url, folder, sessions, *ids)
    yield site
    for client in site.clients:
        client.close()


def next_attempt(site: Site, number: int = 2) -> str:
    """Add a later attempt of the job on the same appliance."""
    with site.sessions.begin() as session:
        first = session.get_one(Attempt, site.attempt_id)
        later = Attempt(
            id=new_id(),
            job_id=first.job_id,
            tenant_id=first.tenant_id,
            appliance_id=first.appliance_id,
            number=number,
            state=AttemptState.STARTING,
            bound_at=first.bound_at,
        )
        session.add(later)
        return later.id


def test_files_are_uploaded_when_they_change_and_restored_elsewhere(
    site: Site, tmp_path: Path
) -> None:
    folder = site.output()
    root = folder.host_paths()[0]
    (root / "deep" / "er").mkdir(parents=True)
    (root / "deep" / "er" / "a.txt").write_bytes(b"first")
    (root / "empty").write_bytes(b"")
    sync = site.uploads(folder)
    assert sync()
    assert site.stored() == {"/out/deep/er/a.txt": 5, "/out/empty": 0}
    (root / "deep" / "er" / "a.txt").write_bytes(b"second!")
    assert sync()
    assert site.stored()["/out/deep/er/a.txt"] == 7

    site.folder = tmp_path / "other"
    site.folder.mkdir()
    restored = site.output()
    Restore(restored, site.client(), stop=Event()).run()
    copy = restored.host_paths()[0]
    assert (copy / "deep" / "er" / "a.txt").read_bytes() == b"second!"
    assert (copy / "empty").read_bytes() == b""
    assert stat.S_IMODE((copy / "deep" / "er").stat().st_mode) == 0o777
    assert stat.S_IMODE((copy / "empty").stat().st_mode) == 0o666
    assert site.uploads(restored)(is_final=True)


def test_a_large_file_goes_in_parts_and_each_only_once(site: Site) -> None:
    folder = site.output()
    path = folder.host_paths()[0] / "model.pt"
    with path.open("wb") as target:
        target.truncate(2 * PART_BYTES)
        target.seek(0, os.SEEK_END)
        target.write(b"end")
    assert site.uploads(folder)()
    assert site.stored() == {"/out/model.pt": 2 * PART_BYTES + 3}
    parts = folder.files["/out/model.pt"].parts
    assert [part.size_bytes for part in parts] == [PART_BYTES, PART_BYTES, 3]
    assert parts[0].sha256 == parts[1].sha256


def test_a_file_that_was_just_written_in_place_waits_and_a_renamed_one_does_not(
    site: Site,
) -> None:
    folder = site.output()
    root = folder.host_paths()[0]
    (root / "half").write_bytes(b"a checkpoint that is being written")
    (root / "tmp").write_bytes(b"a whole checkpoint")
    os.utime(root / "tmp", ns=(1, 1))  # a rename changes this time alone, later than the writing
    (root / "tmp").rename(root / "whole")
    sync = site.uploads(folder, settle_seconds=3600.0)
    assert not sync()
    assert site.stored() == {"/out/whole": 18}
    assert sync(is_final=True)
    assert site.stored().keys() == {"/out/whole", "/out/half"}


def test_a_deleted_file_leaves_the_results_when_it_is_missing_twice(site: Site) -> None:
    folder = site.output()
    root = folder.host_paths()[0]
    for name in ("step-1", "step-2"):
        (root / name).write_text(name)
    sync = site.uploads(folder)
    sync()
    (root / "step-1").unlink()
    sync()
    assert site.stored().keys() == {"/out/step-1", "/out/step-2"}
    sync()
    assert site.stored().keys() == {"/out/step-2"}


def test_hostile_folders_are_left_out_with_a_message(site: Site, tmp_path: Path) -> None:
    secret = tmp_path / "host-secret"
    secret.write_text("of the host")
    folder = site.output()
    root = folder.host_paths()[0]
    (root / "good.txt").write_text("good")
    (root / "link").symlink_to(secret)
    (root / "folder-link").symlink_to(tmp_path)
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "fifo")
    descriptor = os.open(root, os.O_DIRECTORY)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/proc/self/fd/{descriptor}/sock")
        os.close(descriptor)
        with (root / "sparse").open("wb") as sparse:
            sparse.truncate(1 << 43)
        os.link(root / "good.txt", root / "hard-link")
        Path(os.fsdecode(bytes(root) + b"/odd-\xff")).write_text("odd")
        (root / "new\nline").write_text("odd")
        assert site.uploads(folder)(is_final=True)
    assert site.stored() == {"/out/good.txt": 4, "/out/hard-link": 4}
    message = site.message()
    assert "3 symbolic links" in message
    assert "2 sockets, FIFOs or devices" in message
    assert "2 files whose names" in message
    assert "/out/sparse with 8.00 TiB" in message or "/out/sparse with 8 TiB" in message


def test_a_folder_that_becomes_a_link_between_scan_and_upload_is_not_followed(
    site: Site, tmp_path: Path
) -> None:
    folder = site.output()
    root = folder.host_paths()[0]
    (root / "inner").mkdir()
    (root / "inner" / "passwd").write_text("mine")
    made = Uploads(
        folder,
        site.client(),
        ResultSettings(settle_seconds=0),
        stop=Event(),
        now_ns=lambda: to_ns(utc_now()),
    )
    content = scan(folder.pairs())
    (tmp_path / "passwd").write_text("of the host")
    (root / "inner").rename(root / "moved")
    (root / "inner").symlink_to(tmp_path)
    made.sync(content, is_final=True)
    assert site.stored() == {}


def test_too_many_entries_are_bounded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collector.results.scanning.MAX_JOB_FILES", 5)
    folder = site.output()
    root = folder.host_paths()[0]
    for number in range(9):
        (root / f"f{number}").write_text("x")
    site.uploads(folder)(is_final=True)
    assert len(site.stored()) == 5
    assert "after the first" in site.message()


def test_a_late_announcement_of_an_older_attempt_changes_nothing_of_a_newer_one(
    site: Site,
) -> None:
    older = site.output()
    (older.host_paths()[0] / "model").write_text("old")
    (older.host_paths()[0] / "only-old").write_text("old")
    later_id = next_attempt(site)
    newer = Folders(site.folder).create(later_id, site.job_id, ["/out"])
    (newer.host_paths()[0] / "model").write_text("newer")
    site.uploads(newer)()
    site.uploads(older)(is_final=True)
    assert site.stored() == {"/out/model": 5, "/out/only-old": 3}
    client = site.client()
    removal = ResultUpload(attempt_id=site.attempt_id, removed=["/out/model"])
    client.portal.announce_results(removal)
    assert "/out/model" in site.stored()


def test_results_of_another_appliances_attempt_are_unknown(site: Site) -> None:
    folder = site.output()
    (folder.host_paths()[0] / "a").write_text("a")
    stranger = Uploads(
        folder,
        site.client("dgx-01"),
        ResultSettings(settle_seconds=0),
        stop=Event(),
        now_ns=lambda: to_ns(utc_now()),
    )
    with pytest.raises(UnknownAttemptError):
        stranger.sync(scan(folder.pairs()), is_final=True)
    assert site.stored() == {}


def test_files_outside_of_the_outputs_and_with_wrong_parts_are_refused(site: Site) -> None:
    digest = "0" * 64
    part = ResultPart(sha256=digest, size_bytes=3)

    def announced(path: str, size: int = 3) -> ResultFile:
        return ResultFile(path=path, size_bytes=size, modified_at_ns=1, sha256=digest, parts=[part])

    files = [
        announced("/etc/passwd"),
        announced("/out/../etc/passwd"),
        announced("/output/x"),
        announced("/out/x", size=4),
    ]
    reply = site.client().portal.announce_results(
        ResultUpload(attempt_id=site.attempt_id, files=files)
    )
    assert reply.refused.keys() == {file.path for file in files}
    assert (reply.missing, reply.stored) == ([], [])


def test_results_still_arrive_after_the_attempt_has_ended(site: Site) -> None:
    folder = site.output()
    (folder.host_paths()[0] / "late").write_text("late")
    with site.sessions.begin() as session:
        move_attempt(session, site.attempt_id, AttemptState.RUNNING)
        move_attempt(session, site.attempt_id, AttemptState.FAILED)
    assert site.uploads(folder)(is_final=True)
    assert site.stored() == {"/out/late": 4}


def test_results_of_a_deleted_job_are_given_up(site: Site) -> None:
    folder = site.output()
    (folder.host_paths()[0] / "a").write_text("a")
    with site.sessions.begin() as session:
        session.execute(delete(Job).where(Job.id == site.job_id))
    with pytest.raises(UnknownAttemptError):
        site.uploads(folder)(is_final=True)
