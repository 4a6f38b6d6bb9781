"""When backups are made, and what the database says about them."""

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from backup.repository import Stored, restic_address
from backup.runs import RETRY_AFTER, backup_status, end_run, request_backup, take_due
from core.settings import ServerSettings
from tenants.models import BackupState
from tests.cast import NOON

SETTINGS = ServerSettings(backup_url="/srv/backups", backup_interval_seconds=3600.0)
HOUR = timedelta(hours=1)
STORED = Stored(snapshot="4b0f792d", total_bytes=10, added_bytes=1)


def succeed(session: Session) -> None:
    """Make a backup at noon."""
    run = take_due(session, SETTINGS, now=NOON)
    assert run is not None
    end_run(session, run.id, now=NOON, stored=STORED, data_at=NOON)
    session.expire_all()


def test_a_backup_is_made_at_once_and_then_at_the_interval(session: Session) -> None:
    succeed(session)
    assert take_due(session, SETTINGS, now=NOON + HOUR / 2) is None
    assert take_due(session, SETTINGS, now=NOON + HOUR) is not None


def test_one_is_made_after_the_clock_was_ahead(session: Session) -> None:
    succeed(session)
    assert take_due(session, SETTINGS, now=NOON - HOUR / 2) is not None


def test_a_failed_one_is_tried_again_soon_and_the_last_good_one_still_counts(
    session: Session,
) -> None:
    succeed(session)
    run = take_due(session, SETTINGS, now=NOON + HOUR)
    assert run is not None
    end_run(session, run.id, now=NOON + HOUR, error="The disk is full.")
    session.expire_all()
    assert take_due(session, SETTINGS, now=NOON + HOUR + RETRY_AFTER / 2) is None
    assert take_due(session, SETTINGS, now=NOON + HOUR + RETRY_AFTER) is not None
    status = backup_status(session)
    assert status.last is not None
    assert status.last.message == "The disk is full."
    assert status.since == NOON
    assert not status.is_overdue(HOUR, now=NOON + 2 * HOUR)
    assert status.is_overdue(HOUR, now=NOON + 2 * HOUR + timedelta(seconds=1))


def test_a_request_is_taken_though_none_is_due_and_two_are_one(session: Session) -> None:
    succeed(session)
    requested = request_backup(session, now=NOON)
    assert request_backup(session, now=NOON) is requested
    assert take_due(session, SETTINGS, now=NOON) is requested


def test_one_that_a_killed_process_left_has_failed(session: Session) -> None:
    run = take_due(session, SETTINGS, now=NOON)
    assert run is not None
    take_due(session, SETTINGS, now=NOON + HOUR)
    session.refresh(run)
    assert run.state is BackupState.FAILED


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("/srv/backups", "/srv/backups"),
        ("sftp:backup@host:/vedette", "sftp:backup@host:/vedette"),
        ("s3://bucket/prefix", "s3:https://minio.example:9000/bucket/prefix"),
    ],
)
def test_addresses_of_buckets_are_written_as_restic_wants_them(url: str, address: str) -> None:
    assert restic_address(url, {"AWS_ENDPOINT_URL": "https://minio.example:9000/"}) == address
