"""Commands wait for a portal whose database is busy, and submit nothing twice."""

import logging
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from sqlalchemy import Engine, func, select

from core.db import SessionFactory
from jobqueue.models import Job
from tenants.users.tokens import create_api_token
from tests.cast import NOON, Cast, scope_of
from tests.fixtures.writers import written_by_another
from vedette import Client
from vedette.connection import log
from vedette.errors import PortalError


class _OnWarning(logging.Handler):
    """Does something when a command warns that it tries again."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__(logging.WARNING)
        self._act = act

    def emit(self, _record: logging.LogRecord) -> None:
        self._act()


@pytest.fixture
def token(sessions: SessionFactory, cast: Cast) -> str:
    with sessions.begin() as session:
        return create_api_token(session, scope_of(cast.bob), name="ci", now=NOON)[1]


def test_a_job_is_submitted_once_the_database_is_free(
    engine: Engine, sessions: SessionFactory, url: str, token: str
) -> None:
    with ExitStack() as writing, Client(url, token, retry_seconds=60) as client:
        writing.enter_context(written_by_another(engine))
        handler = _OnWarning(writing.close)
        log.addHandler(handler)
        writing.callback(log.removeHandler, handler)
        client.submit("acme/train:1")
    with sessions() as session:
        assert session.scalar(select(func.count()).select_from(Job)) == 1


def test_a_command_that_may_not_wait_says_that_the_database_is_busy(
    engine: Engine, url: str, token: str
) -> None:
    with written_by_another(engine), Client(url, token, retry_seconds=0) as client:
        with pytest.raises(PortalError) as refused:
            client.submit("acme/train:1")
        assert refused.value.code == "database_unavailable"
        assert list(client.jobs()) == []
