"""Fixtures that the cloud side's tests share: a fresh database, the cast, a clock and a store."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from argon2 import PasswordHasher
from sqlalchemy import Engine
from sqlalchemy.orm import Session

import alerting.models as _alerting  # noqa: F401 - these four fill Base.metadata
import core.leases as _leases  # noqa: F401
import jobqueue.models as _jobqueue  # noqa: F401
import tenants.models as _tenants  # noqa: F401
from core.db import Base, SessionFactory, create_database_engine, create_session_factory
from tenants.people import passwords
from tests.cast import Cast, FrozenClock, make_cast
from timeseries.duckdb.store import DuckDBStore
from timeseries.store import Store


def pytest_configure() -> None:
    """Keep the machine's speed out of it: judge properties by answers alone, hash quickly."""
    hypothesis.settings.register_profile(
        "vedette",
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
        print_blob=True,
    )
    hypothesis.settings.load_profile("vedette")
    # With the least work, for hundreds of tests sign in. Servers that tests start do all of it.
    cheap = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    passwords._hashing.hasher = cheap  # noqa: SLF001


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with every table and no rows: to copy it is much quicker than to make it."""
    path = tmp_path_factory.mktemp("empty") / "vedette.db"
    engine = create_database_engine(f"sqlite:///{path}")
    Base.metadata.create_all(engine)
    engine.dispose()
    return path


@pytest.fixture
def engine(empty_database: Path, tmp_path: Path) -> Iterator[Engine]:
    """A fresh SQLite file with every table."""
    path = shutil.copyfile(empty_database, tmp_path / "vedette.db")
    engine = create_database_engine(f"sqlite:///{path}")
    yield engine
    engine.dispose()


@pytest.fixture
def sessions(engine: Engine) -> SessionFactory:
    """The session factory that services, doors and loops share."""
    return create_session_factory(engine)


@pytest.fixture
def session(sessions: SessionFactory) -> Iterator[Session]:
    """One session; what a test does not commit is rolled back."""
    with sessions() as session:
        yield session


@pytest.fixture
def clock() -> FrozenClock:
    """A clock at noon that only the test moves."""
    return FrozenClock()


@pytest.fixture
def cast(sessions: SessionFactory, clock: FrozenClock) -> Cast:
    """The committed cast: visible to every session of the test."""
    with sessions.begin() as session:
        return make_cast(session, now=clock.now)


@pytest.fixture
def store() -> Iterator[Store]:
    """An empty store in memory."""
    store = DuckDBStore(":memory:")
    yield store
    store.close()
