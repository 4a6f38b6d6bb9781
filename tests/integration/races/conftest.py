"""A database with the cast, for what several people do at the same moment.

It is MariaDB, whose transactions run beside each other, and at night SQLite as well.
"""

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
from tests.fixtures.mariadb import without_rows


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("sqlite", marks=pytest.mark.nightly),
        pytest.param("mariadb", marks=pytest.mark.needs_mariadb),
    ],
)
def factory(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SessionFactory]:
    if request.param == "mariadb":
        engine = without_rows(request.getfixturevalue("mariadb_tables"))
    else:
        path = tmp_path_factory.mktemp("database") / "vedette.db"
        engine = create_database_engine(f"sqlite:///{path}")
        Base.metadata.create_all(engine)
    actor = Actor(name="racer", via="test")
    yield acting(create_session_factory(engine), actor, clock=lambda: NOON)
    engine.dispose()


@pytest.fixture(scope="module")
def people(factory: SessionFactory) -> Cast:
    with transaction(factory) as session:
        return make_cast(session)
