"""Backups by restic: what is restored is what was there, and nothing else changes."""

import multiprocessing
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread

import pytest
from sqlalchemy import func, inspect, select, update

from backup import restoring
from backup.making import make_backup
from backup.repository import Repository
from backup.runs import backup_status, request_backup
from core.clock import utc_now
from core.db import SessionFactory, create_database_engine, create_session_factory
from core.errors import ConfigurationError
from core.leases import Lease
from core.migrations import upgrade_database
from core.settings import ServerSettings
from jobqueue.models import Job
from jobqueue.states import Reason
from tenants.lifecycle.server_processes import SILENT_AFTER
from tenants.models import BackupRun, BackupState, ServerProcess, Tenant, User
from tests.cast import FrozenClock, make_cast
from tests.fixtures.in_process import Result, run_vedette
from tests.fixtures.mariadb import MariaDB
from tests.fixtures.migrated import copy_migrated
from tests.fixtures.polling import eventually
from tests.fixtures.s3 import credentials, new_bucket
from tests.servers import free_port, require_program
from tests.unit.jobqueue.builders import submit
from tests.unit.timeseries.killed_sealing import SETTLED_NS, count_by_hour
from tests.unit.timeseries.rollup_samples import ACME, HOUR_NS, START_NS, gpu, write_all
from timeseries.duckdb.store import DuckDBStore

LOG = Path("job-logs/tenant/job/1.log")


@dataclass
class Host:
    """A server's data folder, and the commands on it."""

    data: Path
    environ: dict[str, str]

    def vedette(self, *arguments: str, **environ: str) -> Result:
        return run_vedette(*arguments, environ={**self.environ, **environ})

    def sessions(self) -> SessionFactory:
        return create_session_factory(create_database_engine(f"sqlite:///{self.data}/vedette.db"))

    def store(self) -> DuckDBStore:
        return DuckDBStore(self.data / "samples.duckdb")

    @property
    def repository(self) -> Path:
        return Path(self.environ["VEDETTE_BACKUP_URL"])

    @property
    def settings(self) -> ServerSettings:
        return ServerSettings(
            data_dir=self.data,
            backup_url=self.environ["VEDETTE_BACKUP_URL"],
            backup_password_file=Path(self.environ["VEDETTE_BACKUP_PASSWORD_FILE"]),
        )


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """A server with the cast, sealed and new samples, a log and a waiting job; and its backup."""
    require_program("restic", package="restic")
    folder = tmp_path_factory.mktemp("lost")
    password = folder / "password"
    password.write_text("correct horse battery staple\n", encoding="utf-8")
    host = host_at(folder / "data", repository=folder / "repository", password=password)
    host.data.mkdir(mode=0o700)
    copy_migrated(host.data / "vedette.db")
    with host.sessions().begin() as session:
        cast = make_cast(session)
        submit(session, cast.bob)
    hours = [gpu(START_NS + n * HOUR_NS, power_watts=float(n)) for n in range(9)]
    with closing(host.store()) as store:
        write_all(store, hours, ACME)
        store.maintain(now_ns=SETTLED_NS)
        write_all(store, [gpu(SETTLED_NS, power_watts=1.0)], ACME)
    (host.data / LOG).parent.mkdir(parents=True)
    (host.data / LOG).write_bytes(bytes(range(256)) * 20_000)
    made = host.vedette("backup")
    assert made.returncode == 0, made.stderr
    return host


def host_at(folder: Path, *, repository: Path, password: Path) -> Host:
    environ = {
        "VEDETTE_CONFIG": "",
        "VEDETTE_DATA_DIR": str(folder),
        "VEDETTE_PORT": str(free_port()),
        "VEDETTE_BACKUP_URL": str(repository),
        "VEDETTE_BACKUP_PASSWORD_FILE": str(password),
    }
    return Host(folder, environ)


@pytest.fixture
def new_host(lost: Host, tmp_path: Path) -> Host:
    """A host without data that knows where the backups are."""
    return Host(tmp_path / "new", {**lost.environ, "VEDETTE_DATA_DIR": str(tmp_path / "new")})


def test_a_restored_server_has_everything_and_only_its_user_can_read_it(
    lost: Host, new_host: Host
) -> None:
    restored = new_host.vedette("restore")
    assert restored.returncode == 0, restored.stderr
    with lost.sessions().begin() as old, new_host.sessions().begin() as new:
        for model in (Tenant, User):
            count = select(func.count()).select_from(model)
            assert new.scalar(count) == old.scalar(count)
        assert new.scalars(select(Job.reason)).all() == [Reason.RESTORED]
    with closing(lost.store()) as old_store, closing(new_host.store()) as new_store:
        assert count_by_hour(new_store) == count_by_hour(old_store)
    for name in ("encryption_keys", "secret_key", str(LOG)):
        assert (new_host.data / name).read_bytes() == (lost.data / name).read_bytes()
    files = [path for path in new_host.data.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in files} == {0}
    assert not list(new_host.data.glob("restore-*"))


@pytest.mark.nightly
def test_a_relative_data_folder_with_links_to_other_disks_is_stored_whole(
    lost: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(lost.data, "disk #1/var", ignore=shutil.ignore_patterns("cache"))
    shutil.move("disk #1/var/job-logs", "logs")
    Path("disk #1/var/job-logs").symlink_to(tmp_path / "logs")
    Path("var").symlink_to("disk #1/var")
    repository = {"VEDETTE_BACKUP_URL": str(tmp_path / "repository")}
    host = Host(Path("var"), {**lost.environ, **repository, "VEDETTE_DATA_DIR": "var"})
    for command in (["backup"], ["backup", "verify"]):
        ended = host.vedette(*command)
        assert ended.returncode == 0, ended.stderr
    shutil.rmtree("logs")
    restored = host.vedette("restore", VEDETTE_DATA_DIR="new")
    assert restored.returncode == 0, restored.stderr
    assert (Path("new") / LOG).read_bytes() == (lost.data / LOG).read_bytes()


def test_a_server_that_goes_on_writing_makes_the_backup_and_stores_what_is_new(lost: Host) -> None:
    sessions, clock, is_done = lost.sessions(), FrozenClock(), Event()
    written: list[None] = []

    def write_until_done() -> None:
        while not is_done.is_set():
            written.append(None)
            write_all(store, [gpu(SETTLED_NS + len(written), power_watts=1.0)], ACME)
            with sessions.begin() as session:
                session.add(Lease(name=f"l{len(written)}", holder="h", expires_at=clock.now))

    with closing(lost.store()) as store:
        with sessions.begin() as session:
            run = request_backup(session, now=clock.now)
        writer = Thread(target=write_until_done)
        writer.start()
        try:
            make_backup(lost.settings, sessions, store, run.id, clock=clock)
        finally:
            is_done.set()
            writer.join()
    assert len(written) > 10
    with sessions.begin() as session:
        [first, second] = session.scalars(select(BackupRun).order_by(BackupRun.id))
        assert backup_status(session).since == clock.now
    assert second.added_bytes < first.added_bytes / 2
    assert second.total_bytes > 5_000_000
    assert not (lost.data / "backup/contents").exists()


def test_nothing_in_the_repository_can_be_read_without_the_password(
    lost: Host, tmp_path: Path
) -> None:
    key = (lost.data / "encryption_keys").read_bytes().strip()
    files = [path for path in lost.repository.rglob("*") if path.is_file()]
    stored = b"".join(path.read_bytes() for path in files)
    assert stored
    assert key not in stored
    assert b"alice@acme.example" not in stored
    other = tmp_path / "other"
    other.write_text("another one\n", encoding="utf-8")
    listed = lost.vedette("backup", "list", VEDETTE_BACKUP_PASSWORD_FILE=str(other))
    assert listed.returncode == 1
    assert "password" in listed.stderr


def test_verify_finds_damage(lost: Host, tmp_path: Path) -> None:
    verified = lost.vedette("backup", "verify")
    assert verified.returncode == 0, verified.stderr
    assert "can be restored" in verified.stdout
    repository = shutil.copytree(lost.repository, tmp_path / "repository")
    for pack in [path for path in (repository / "data").rglob("*") if path.is_file()]:
        damaged = bytearray(pack.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        pack.chmod(0o600)
        pack.write_bytes(damaged)
    failed = lost.vedette("backup", "verify", VEDETTE_BACKUP_URL=str(repository))
    assert failed.returncode == 1
    with lost.sessions().begin() as session:
        verification = backup_status(session).last_verification
    assert verification is not None
    assert verification.state is BackupState.FAILED
    assert not list((lost.data / "backup").glob("restore-*"))


@pytest.mark.nightly
def test_a_restore_sets_present_data_aside_only_when_told(lost: Host, new_host: Host) -> None:
    new_host.data.mkdir()
    (new_host.data / "secret_key").write_text("mine\n", encoding="utf-8")
    refused = new_host.vedette("restore")
    assert refused.returncode == 1
    assert "--replace" in refused.stderr
    assert contents_of(new_host.data) == {"secret_key": b"mine\n"}
    assert new_host.vedette("restore", "--replace").returncode == 0
    [aside] = new_host.data.glob("before-restore-*")
    assert contents_of(aside) == {"secret_key": b"mine\n"}
    assert (new_host.data / "secret_key").read_bytes() == (lost.data / "secret_key").read_bytes()


@pytest.mark.nightly
def test_nothing_is_restored_under_a_server_that_runs_on_another_port(new_host: Host) -> None:
    new_host.data.mkdir()
    copy_migrated(new_host.data / "vedette.db")
    with new_host.sessions().begin() as session:
        process = ServerProcess(holder="host:1", url="", parts="scheduler", version="1")
        process.started_at = process.seen_at = utc_now()
        session.add(process)
    refused = new_host.vedette("restore", "--replace")
    assert refused.returncode == 1
    assert "The server runs: scheduler as host:1. Stop it first." in refused.stderr
    with new_host.sessions().begin() as session:
        session.execute(update(ServerProcess).values(seen_at=utc_now() - SILENT_AFTER))
    assert new_host.vedette("restore", "--replace").returncode == 0


@pytest.mark.nightly
def test_no_backups_are_deleted_while_one_is_dated_in_the_future(
    tmp_path: Path, lost: Host
) -> None:
    settings = replace(lost.settings, backup_url=str(tmp_path / "repository"))
    (tmp_path / "file").touch()
    repository = Repository.of(settings)
    repository.prepare()
    restic = [require_program("restic", package="restic"), "--repo", settings.backup_url]
    restic += ["--password-file", str(settings.backup_password_file)]
    for year in (2020, 2026):
        backup = ["backup", "--host", "vedette", "--time", f"{year}-01-01 00:00:00"]
        subprocess.run([*restic, *backup, tmp_path / "file"], check=True, capture_output=True)
    repository.forget(keep_days=30, now=datetime(2020, 6, 1, tzinfo=UTC))
    assert len(repository.snapshots()) == 2
    repository.forget(keep_days=30, now=datetime(2026, 6, 1, tzinfo=UTC))
    assert [snapshot.at.year for snapshot in repository.snapshots()] == [2026]


def test_backups_can_be_read_beside_the_lock_of_a_server_that_is_lost(
    lost: Host, new_host: Host
) -> None:
    password = ["--password-file", lost.environ["VEDETTE_BACKUP_PASSWORD_FILE"]]
    repository = ["--repo", str(lost.repository), "--no-cache", "--limit-download", "1"]
    argv = [require_program("restic", package="restic"), *repository, *password, "check"]
    with subprocess.Popen([*argv, "--read-data"]) as check:
        try:
            eventually(lambda: any((lost.repository / "locks").iterdir()), what="the lock")
        finally:
            check.kill()
    listed = new_host.vedette("backup", "list")
    assert listed.returncode == 0, listed.stderr


@pytest.mark.nightly
def test_a_restore_that_fails_leaves_what_was_there(new_host: Host) -> None:
    (new_host.data / LOG).parent.mkdir(parents=True)
    (new_host.data / LOG).write_bytes(b"mine\n")
    (new_host.data / "secret_key").write_text("mine\n", encoding="utf-8")
    (new_host.data / "file").touch()
    before = contents_of(new_host.data)
    no_folder = f"{new_host.data}/file/logs"
    failed = new_host.vedette("restore", "--replace", VEDETTE_LOG_URL=no_folder)
    assert failed.returncode == 1
    assert "Everything is as it was" in failed.stderr
    assert contents_of(new_host.data) == before


@pytest.mark.nightly
def test_no_server_starts_after_a_restore_that_was_killed_before_it_is_repeated(
    new_host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_host.data.mkdir()
    (new_host.data / "secret_key").write_text("mine\n", encoding="utf-8")
    with monkeypatch.context() as patched:
        # As a kill: nothing after the move is done, neither the way back nor what follows.
        patched.setattr(restoring, "_move", killed_move)
        assert in_child(lambda: new_host.vedette("restore", "--replace")) == signal.SIGKILL
    assert not (new_host.data / "secret_key").exists()
    refused = new_host.vedette("server")
    assert refused.returncode == 1
    assert "Repeat it: vedette restore --replace" in refused.stderr
    assert not (new_host.data / "vedette.db").exists()
    own = new_host.data / "restore-of-mine"
    own.mkdir()
    assert new_host.vedette("restore", "--replace").returncode == 0
    assert list(new_host.data.glob("restore-*")) == [own]
    assert new_host.vedette("server", "check").returncode == 0


def killed_move(source: Path, target: Path, done: list[restoring.Move]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(source, target)
    done.append((source, target))
    os.kill(os.getpid(), signal.SIGKILL)


def in_child(command: Callable[[], object]) -> int:
    """Run a command in a process of its own; return the signal that ended it."""
    process = multiprocessing.get_context("fork").Process(target=command)
    process.start()
    process.join()
    return -(process.exitcode or 0)


def contents_of(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.nightly
@pytest.mark.needs_mariadb
def test_a_database_on_mariadb_is_dumped_and_loaded(
    lost: Host, mariadb: MariaDB, tmp_path: Path
) -> None:
    old_url, new_url = mariadb.new_database(), mariadb.new_database()
    old = moved(lost, tmp_path / "old", database_url=old_url)
    old.data.mkdir()
    old_engine, new_engine = create_database_engine(old_url), create_database_engine(new_url)
    upgrade_database(old_engine)
    with create_session_factory(old_engine).begin() as session:
        submit(session, make_cast(session).bob, name="train-🔥")
    made = old.vedette("backup")
    assert made.returncode == 0, made.stderr
    new = moved(lost, tmp_path / "new", database_url=new_url)
    failed = new.vedette("restore", TIMESERIES_URL="duckdb:////dev/null/x/samples.duckdb")
    assert failed.returncode == 1
    assert inspect(new_engine).get_table_names() == []
    restored = new.vedette("restore")
    assert restored.returncode == 0, restored.stderr
    with create_session_factory(new_engine).begin() as session:
        assert session.scalars(select(Job.name)).one() == "train-🔥"
        assert session.scalar(select(func.count()).select_from(User)) == 4
    refused = new.vedette("restore", "--replace")
    assert refused.returncode == 1
    assert "empty" in refused.stderr
    for engine in (old_engine, new_engine):
        engine.dispose()


def moved(host: Host, folder: Path, *, database_url: str) -> Host:
    """Return a host with another folder and database, and a repository of its own."""
    environ = {
        **host.environ,
        "VEDETTE_DATA_DIR": str(folder),
        "VEDETTE_BACKUP_URL": f"{host.repository}-mariadb",
        "DATABASE_URL": database_url,
    }
    return Host(folder, environ)


@pytest.mark.nightly
def test_a_bucket_takes_backups_too(lost: Host, s3_endpoint: str) -> None:
    url = f"s3://{new_bucket(s3_endpoint).name}/vedette"
    made = lost.vedette("backup", VEDETTE_BACKUP_URL=url, **credentials(s3_endpoint))
    assert made.returncode == 0, made.stderr


def test_messages_have_no_password_of_the_repository(lost: Host) -> None:
    url = "rest:http://vedette:pass-word@127.0.0.1:9/backups"
    shown = [lost.vedette("backup", "list", VEDETTE_BACKUP_URL=url).stderr]
    shown.append(lost.vedette("server", "check", VEDETTE_BACKUP_URL=url).stdout)
    assert all("vedette:***@127.0.0.1:9/backups" in text for text in shown)
    assert "pass-word" not in "".join(shown)


def test_what_is_missing_is_named_with_the_remedy(
    lost: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigurationError) as raised:
        Repository.of(replace(lost.settings, backup_url="", backup_password_file=None))
    assert [problem.partition(" ")[0] for problem in raised.value.problems] == [
        "backup_url",
        "restic",
        "backup_password_file",
    ]
    assert "apt install restic" in raised.value.problems[1]
