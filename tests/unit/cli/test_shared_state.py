"""A process refuses to run beside others that don't share its keys and folders."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.backend import open_backend
from cli.shared_state import MARK, require_shared_state, shared_state
from core.db import SessionFactory, transaction
from core.errors import ConfigurationError
from core.leases import process_name
from core.settings import ServerSettings
from jobqueue.logs.log_files import LogFiles
from tenants.lifecycle.server_processes import SILENT_AFTER
from tenants.models import ServerProcess
from tests.cast import FrozenClock

MARIADB = "mysql+pymysql://vedette@db.example/vedette"
URL = "http://10.0.0.2:8000"


class Host:
    """A host with its own data folder; it never connects to the database of its settings."""

    def __init__(self, data_dir: Path, sessions: SessionFactory, clock: FrozenClock) -> None:
        data_dir.mkdir()
        self.settings = ServerSettings(
            data_dir=data_dir, database_url=MARIADB, public_url="https://portal.example"
        )
        self._sessions = sessions
        self._clock = clock

    def runs_as(self, holder: str, *, has_pages: bool = False) -> None:
        state = shared_state(self.settings, has_pages=has_pages)
        process = ServerProcess(
            holder=holder,
            url=URL,
            version="1",
            started_at=self._clock.now,
            seen_at=self._clock.now,
            shared=" ".join(f"{name}={text}" for name, text in state.items()),
        )
        with transaction(self._sessions) as session:
            session.merge(process)

    def check(self, *, has_pages: bool = False) -> None:
        state = shared_state(self.settings, has_pages=has_pages)
        require_shared_state(self._sessions, self.settings, state, now=self._clock.now)

    def problems(self) -> list[str]:
        with pytest.raises(ConfigurationError) as raised:
            self.check()
        return [problem.partition(":")[0] for problem in raised.value.problems]

    def shares(self, other: "Host", **settings: Any) -> None:  # noqa: ANN401 - of any type
        """Use the folders and the key of another host."""
        folder = other.settings.data_dir
        shared: dict[str, Any] = {
            "log_url": str(folder / "job-logs"),
            "data_url": str(folder / "data"),
            "secret_key": "shared",
        }
        self.settings = replace(self.settings, **{**shared, **settings})


@pytest.fixture
def first(sessions: SessionFactory, clock: FrozenClock, tmp_path: Path) -> Host:
    return Host(tmp_path / "first", sessions, clock)


@pytest.fixture
def second(sessions: SessionFactory, clock: FrozenClock, tmp_path: Path) -> Host:
    return Host(tmp_path / "second", sessions, clock)


def test_a_host_with_keys_and_folders_of_its_own_is_refused(first: Host, second: Host) -> None:
    first.check()
    first.runs_as("first:1")
    with pytest.raises(ConfigurationError) as raised:
        second.check()
    assert [problem.partition(":")[0] for problem in raised.value.problems] == [
        "secret_key",
        "log_url",
        "data_url",
    ]
    assert f"first:1 ({URL})" in raised.value.message
    assert str(second.settings.data_dir / "job-logs") in raised.value.message
    assert "VEDETTE_SECRET_KEY" in raised.value.message
    first.check()


def test_hosts_with_shared_folders_and_one_key_run_beside_each_other(
    first: Host, second: Host
) -> None:
    first.shares(first)
    first.runs_as("first:1")
    second.shares(first)
    second.check()
    second.shares(first, log_url=f"file://{first.settings.data_dir}/job-logs")
    second.check()


def test_a_folder_that_is_not_mounted_is_noticed(first: Host, second: Host, tmp_path: Path) -> None:
    first.shares(first)
    first.runs_as("first:1")
    # A copy at another place has the same path on its host.
    second.shares(first, log_url=str(tmp_path / "not-mounted"))
    assert second.problems() == ["log_url"]
    first.settings = replace(first.settings, log_url="s3://logs/vedette")
    first.runs_as("first:1")
    assert second.problems() == ["log_url"]
    second.shares(first, log_url="s3://logs/vedette/")
    second.check()


def test_a_key_that_is_being_changed_is_only_reported(
    first: Host, second: Host, caplog: pytest.LogCaptureFixture
) -> None:
    first.shares(first)
    first.runs_as("first:1")
    second.shares(first, secret_key="new", public_url="https://other.example")
    with caplog.at_level(logging.WARNING):
        second.check()
    assert [
        record.message.partition(" is not that of first:1")[0] for record in caplog.records
    ] == [
        "secret_key",
        "public_url",
    ]


def test_portals_with_other_packages_for_appliances_are_reported(
    first: Host, second: Host, caplog: pytest.LogCaptureFixture
) -> None:
    first.shares(first)
    first.runs_as("first:1", has_pages=True)
    second.shares(first)
    folder = second.settings.data_dir / "wheelhouse"
    folder.mkdir()
    (folder / "wheelhouse.json").write_text(
        '{"version": "1", "pythons": [], "machines": [], "requirements_sha256": "ab"}', "utf-8"
    )
    second.check()
    assert not caplog.records
    second.check(has_pages=True)
    assert "wheelhouse/" in caplog.text


def test_a_second_process_at_the_same_address_is_reported(
    first: Host, second: Host, caplog: pytest.LogCaptureFixture
) -> None:
    first.shares(first)
    first.runs_as("first:1")
    second.shares(first, internal_url=URL)
    second.check()
    assert f"internal_url {URL} is also that of first:1" in caplog.text


def test_processes_that_ended_or_are_of_an_older_version_are_no_hindrance(
    first: Host, second: Host, sessions: SessionFactory, clock: FrozenClock
) -> None:
    first.runs_as(f"{process_name().rpartition(':')[0]}:999999999")  # killed on this host
    second.check()
    first.runs_as(process_name())
    second.check()
    first.runs_as("first:1")
    with transaction(sessions) as session:
        session.get_one(ServerProcess, "first:1").shared = ""
    second.check()
    first.runs_as("first:1")
    clock.advance(SILENT_AFTER.total_seconds())
    second.check()


def test_on_one_host_with_sqlite_nothing_is_compared(tmp_path: Path) -> None:
    assert shared_state(ServerSettings(data_dir=tmp_path), has_pages=True) == {}
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_can_not_be_written_is_a_clear_error(first: Host) -> None:
    place = first.settings.data_dir / "file"
    place.touch()
    first.settings = replace(first.settings, log_url=str(place / "logs"))
    with pytest.raises(ConfigurationError, match=r"log_url: .*file/logs can't be written"):
        first.check()


def test_the_mark_of_a_folder_is_no_tenant(first: Host) -> None:
    first.check()
    folder = first.settings.data_dir / "job-logs"
    assert (folder / MARK).exists()
    assert LogFiles(str(folder)).names() == []


def test_a_second_server_without_the_keys_of_the_first_is_refused_before_there_are_secrets(
    tmp_path: Path,
) -> None:
    database_url = f"sqlite:///{tmp_path / 'shared.db'}"
    hosts = [
        ServerSettings(data_dir=tmp_path / name, database_url=database_url)
        for name in ("first", "second")
    ]
    with open_backend(hosts[0]):
        pass
    with (
        pytest.raises(ConfigurationError, match="copy it from another server"),
        open_backend(hosts[1]),
    ):
        pass
    (hosts[1].data_dir / "encryption_keys").write_text(
        "NqnUyTzn0yDL3Lvm3AfrxWLUHiAnLhjbVdB1OsRWrEI=\n", "utf-8"
    )
    with (
        pytest.raises(ConfigurationError, match="copy them from the first"),
        open_backend(hosts[1]),
    ):
        pass
    with open_backend(hosts[0]):
        pass
