"""A database of each kind, with the cast, for what several people do at the same moment."""

from collections.abc import Iterator

import pytest

from core.db import (
    Base,
    SessionFactory,
    create_database_engine,
    create_session_factory,
    transaction,
)
from tenants.auditing.drafts import Actor
from tenants.auditing.recording import acting
from tests.cast import NOON, Cast, make_cast


@pytest.fixture(scope="module")
def factory(database_url: str) -> Iterator[SessionFactory]:
    engine = create_database_engine(database_url)
    Base.metadata.create_all(engine)
    actor = Actor(name="racer", via="test")
    yield acting(create_session_factory(engine), actor, clock=lambda: NOON)
    engine.dispose()


@pytest.fixture(scope="module")
def people(factory: SessionFactory) -> Cast:
    with transaction(factory) as session:
        return make_cast(session)
