"""Logs of ended jobs in a bucket of S3: moved, read from any byte, and swept."""

from datetime import timedelta

import pytest

from core.db import SessionFactory
from jobqueue.logs.log_files import LogFiles, move_logs, sweep_files
from jobqueue.logs.logs import delete_log, read_log
from protocol.attempts import ObservedState
from tests.cast import NOON, Cast, scope_of
from tests.fixtures.s3 import credentials, new_bucket
from tests.unit.jobqueue.builders import append_log, report, start


def test_a_log_moves_to_a_bucket_and_is_read_and_deleted_there(
    sessions: SessionFactory, cast: Cast, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in credentials(s3_endpoint).items():
        monkeypatch.setenv(name, value)
    files = LogFiles(f"s3://{new_bucket(s3_endpoint).name}/logs")
    with sessions.begin() as session:
        attempt = start(session, cast)
        append_log(session, attempt, b"one\ntwo\n")
        report(session, attempt, ObservedState.SUCCEEDED)
    assert move_logs(sessions, files, now=NOON + timedelta(days=1)) == 1
    with sessions.begin() as session:
        page = read_log(session, scope_of(cast.alice), attempt.job_id, offset=4)
    assert (files.filled(page).data, files.filled(page).is_complete) == (b"two\n", True)
    assert sweep_files(sessions, files) == 0
    with sessions.begin() as session:
        delete_log(session, attempt.id)
    assert sweep_files(sessions, files) == 1
    assert files.names(attempt.tenant_id) == []
