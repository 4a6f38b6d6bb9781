"""Secret variables of jobs: encrypted at rest, passed to the agent, copied only by their user."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from cli.secrets import rotate_secrets
from core.db import SessionFactory
from core.errors import ForbiddenError, InvalidInputError, NotFoundError, UnavailableError
from core.secretbox import SecretBox, new_key
from jobqueue.dispatch.desired_state import desired_state
from jobqueue.jobs.job_secrets import decrypt_secrets, make_secret
from jobqueue.models import Job
from tests.cast import BOX, BOX_KEY, Cast, scope_of
from tests.unit.jobqueue.builders import start, submit

VALUE = "correct-horse-battery"
SECRETS = {"HF_TOKEN": VALUE}


def stored_bytes(engine: Engine) -> bytes:
    """Return all bytes of the database's files, with its write-ahead log."""
    path = Path(str(engine.get_execution_options()["file"]))
    return b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*"))


def test_a_secret_is_not_in_the_files_of_the_database(
    engine: Engine, sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        job = submit(session, cast.bob, secrets=SECRETS, env={"PLAIN": "visible-in-the-file"})

    assert b"visible-in-the-file" in stored_bytes(engine)
    assert VALUE.encode() not in stored_bytes(engine)
    assert job.secret_names == ["HF_TOKEN"]


def test_the_agent_gets_the_secrets_beside_the_plain_variables(
    session: Session, cast: Cast
) -> None:
    attempt = start(session, cast, secrets=SECRETS, env={"EPOCHS": "3"})
    (spec,) = desired_state(session, attempt.appliance_id, box=BOX).attempts
    assert (spec.env, spec.secrets) == ({"EPOCHS": "3"}, SECRETS)


def test_a_lost_key_is_an_error_and_not_a_job_without_its_secrets(
    session: Session, cast: Cast
) -> None:
    attempt = start(session, cast, secrets=SECRETS)
    with pytest.raises(UnavailableError):
        desired_state(session, attempt.appliance_id, box=SecretBox([new_key()]))


@pytest.mark.parametrize(
    "changes",
    [
        {"secrets": {"1X": "a"}},
        {"secrets": {"X": "a\0b"}},
        {"secrets": {"X": "a"}, "env": {"X": "b"}},
    ],
)
def test_invalid_secrets_are_refused_by_name_and_not_by_value(
    session: Session, cast: Cast, changes: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInputError) as refused:
        submit(session, cast.bob, **changes)
    assert list(refused.value.errors) == ["secrets"]
    assert repr(changes["secrets"].popitem()[1]) not in refused.value.message


def test_a_plain_variable_becomes_a_secret_in_any_state(session: Session, cast: Cast) -> None:
    attempt = start(session, cast, env={"EPOCHS": "3", "TOKEN": VALUE}, secrets={"A": "b"})

    for _ in range(2):  # the second time changes nothing
        make_secret(session, scope_of(cast.alice), attempt.job_id, ["TOKEN"], box=BOX)

    job = attempt.job
    assert (job.env, job.secret_names) == ({"EPOCHS": "3"}, ["A", "TOKEN"])
    assert decrypt_secrets(BOX, job.secret_env) == {"A": "b", "TOKEN": VALUE}


def test_no_file_of_the_database_has_what_became_secret(
    engine: Engine, sessions: SessionFactory, cast: Cast, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither in its free pages, which a long value fills, nor in its write-ahead log."""
    env = {"TOKEN": VALUE, "LONG": "staple" * 2_000, "EPOCHS": "visible" * 9}
    with sessions.begin() as session:
        job = submit(session, cast.bob, env=env)
    assert VALUE.encode() in stored_bytes(engine)

    with sessions.begin() as session:
        make_secret(session, scope_of(cast.bob), job.id, ["TOKEN"], box=BOX)
    with engine.connect() as reader:
        reader.exec_driver_sql("BEGIN")
        reader.exec_driver_sql("SELECT count(*) FROM jobs").scalar()
        with sessions.begin() as session:
            make_secret(session, scope_of(cast.bob), job.id, ["LONG"], box=BOX)
        assert "was in use" in caplog.text
    with sessions.begin() as session:
        make_secret(session, scope_of(cast.bob), job.id, ["LONG"], box=BOX)

    assert b"visible" in stored_bytes(engine)  # once at least within a page
    assert VALUE.encode() not in stored_bytes(engine)
    assert b"staple" not in stored_bytes(engine)


def test_only_the_user_and_admins_make_secrets(session: Session, cast: Cast) -> None:
    own = submit(session, cast.bob, env={"X": "1"})
    other = submit(session, cast.alice, env={"X": "1"})
    make_secret(session, scope_of(cast.alice), own.id, ["X"], box=BOX)
    with pytest.raises(ForbiddenError):
        make_secret(session, scope_of(cast.bob), other.id, ["X"], box=BOX)
    with pytest.raises(NotFoundError):
        make_secret(session, scope_of(cast.charlie), other.id, ["X"], box=BOX)


def test_a_variable_that_does_not_exist_is_named(session: Session, cast: Cast) -> None:
    job = submit(session, cast.bob, env={"X": "1"})
    with pytest.raises(InvalidInputError, match="MISSING"):
        make_secret(session, scope_of(cast.bob), job.id, ["X", "MISSING"], box=BOX)
    assert job.env == {"X": "1"}


def test_a_copy_has_the_secrets_of_its_source_unless_it_has_its_own(
    session: Session, cast: Cast
) -> None:
    source = submit(session, cast.bob, secrets={"A": "1", "B": "2", "C": "3"})
    copy = submit(session, cast.bob, secrets_from=source.id, secrets={"B": "4"}, env={"C": "5"})
    assert decrypt_secrets(BOX, copy.secret_env) == {"A": "1", "B": "4"}
    assert copy.secret_names == ["A", "B"]


def test_secrets_of_others_are_not_copied(session: Session, cast: Cast) -> None:
    """Not even by an admin: the command of the copy could print them."""
    source = submit(session, cast.bob, secrets=SECRETS)
    with pytest.raises(ForbiddenError):
        submit(session, cast.alice, secrets_from=source.id)
    for user, ident in ((cast.charlie, source.id), (cast.bob, "missing")):
        with pytest.raises(InvalidInputError) as refused:
            submit(session, user, secrets_from=ident)
        assert list(refused.value.errors) == ["secrets_from"]


def test_a_rotation_covers_secrets_of_jobs(session: Session, cast: Cast) -> None:
    key = new_key()
    submit(session, cast.bob)
    job = submit(session, cast.bob, secrets=SECRETS)
    before = job.secret_env
    both = SecretBox([key, BOX_KEY])

    counts = rotate_secrets(session, both, report=lambda _text: None)
    session.refresh(job)

    assert counts["secrets of jobs"] == 1
    assert job.secret_env != before
    assert decrypt_secrets(SecretBox([key]), job.secret_env) == SECRETS
    assert session.scalars(select(Job).where(Job.secret_env.is_(None))).one()
