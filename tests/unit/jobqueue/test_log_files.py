"""Logs of ended attempts move to files; a tenant has a bound; files of deleted jobs go."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import delete, func, select

from core.db import SessionFactory
from core.errors import ConfigurationError, UnavailableError
from jobqueue.logs.log_files import LogFiles, bound_tenants, move_logs, sweep_files
from jobqueue.logs.logs import read_log
from jobqueue.models import Attempt, Job, LogChunk
from jobqueue.states import LogState
from protocol.attempts import ObservedState
from tests.cast import NOON, Cast, scope_of
from tests.unit.jobqueue.builders import append_log, report, start

LATER = NOON + timedelta(days=1)


@pytest.fixture
def files(tmp_path: Path) -> LogFiles:
    return LogFiles(str(tmp_path / "logs"))


@pytest.fixture
def attempt(sessions: SessionFactory, cast: Cast) -> Attempt:
    """An attempt that has ended, with a log of two chunks."""
    with sessions.begin() as session:
        started = start(session, cast)
        for offset, data in ((0, b"one\n"), (4, b"two\n")):
            append_log(session, started, data, offset=offset)
        report(session, started, ObservedState.SUCCEEDED)
        return started


def read(
    sessions: SessionFactory, files: LogFiles, attempt: Attempt, cast: Cast
) -> Iterator[bytes]:
    offset, is_complete = 0, False
    while not is_complete:
        with sessions.begin() as session:
            page = read_log(session, scope_of(cast.alice), attempt.job_id, offset=offset, limit=3)
        page = files.filled(page)
        yield page.data
        offset, is_complete = page.next_offset, page.is_complete


def test_an_ended_log_moves_to_a_file_and_reads_the_same(
    sessions: SessionFactory, files: LogFiles, attempt: Attempt, cast: Cast
) -> None:
    assert move_logs(sessions, files, now=NOON) == 0  # its end may have been reported just now
    before = list(read(sessions, files, attempt, cast))
    assert move_logs(sessions, files, now=LATER) == 1
    assert move_logs(sessions, files, now=LATER) == 0
    with sessions.begin() as session:
        assert session.scalar(select(func.count()).select_from(LogChunk)) == 0
        late = append_log(session, attempt, b"late", offset=8)
        assert late.is_full
    assert list(read(sessions, files, attempt, cast)) == before == [b"one", b"\ntw", b"o\n"]


def test_a_failing_file_system_is_reported_and_loses_nothing(
    sessions: SessionFactory, files: LogFiles, attempt: Attempt, cast: Cast, tmp_path: Path
) -> None:
    (tmp_path / "logs").write_text("in the way")
    with pytest.raises(OSError, match="logs"):
        move_logs(sessions, files, now=LATER)
    assert b"".join(read(sessions, files, attempt, cast)) == b"one\ntwo\n"
    (tmp_path / "logs").unlink()
    move_logs(sessions, files, now=LATER)
    files.delete(f"{attempt.tenant_id}/{attempt.job_id}/1.log")
    with pytest.raises(UnavailableError):
        list(read(sessions, files, attempt, cast))


def test_the_oldest_logs_of_a_tenant_are_deleted_above_its_bound(
    sessions: SessionFactory, files: LogFiles, attempt: Attempt, cast: Cast
) -> None:
    move_logs(sessions, files, now=LATER)
    with sessions.begin() as session:
        assert bound_tenants(session, max_bytes=8) == 0
        assert bound_tenants(session, max_bytes=7) == 1
    with sessions.begin() as session:
        assert session.get_one(Attempt, attempt.id).log_state is LogState.DELETED
    assert list(read(sessions, files, attempt, cast)) == [b""]
    assert sweep_files(sessions, files) == 1
    assert files.names(attempt.tenant_id) == []


def test_files_of_deleted_jobs_are_swept_and_others_stay(
    sessions: SessionFactory, files: LogFiles, attempt: Attempt
) -> None:
    move_logs(sessions, files, now=LATER)
    assert sweep_files(sessions, files) == 0
    with sessions.begin() as session:
        session.execute(delete(Job).where(Job.id == attempt.job_id))
    assert sweep_files(sessions, files) == 1
    assert files.names(attempt.tenant_id) == []


def test_an_address_that_nothing_can_open_names_the_setting() -> None:
    with pytest.raises(ConfigurationError, match="log_url"):
        LogFiles("s4://bucket")
