"""Fixtures that the cloud side's tests share: a fresh database, the cast, a clock and a store."""

import gc
import os
import pickle
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import cast as cast_type

import hypothesis
import pytest
from argon2 import PasswordHasher
from hypothesis.internal.conjecture import providers
from sqlalchemy import Dialect, Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.orm import Session
from xdist.scheduler.loadfile import LoadFileScheduling

import alerting.notification.models as _alerting  # noqa: F401 - these fill Base.metadata
import core.leases as _leases  # noqa: F401
import dash_app.custom.models as _custom  # noqa: F401
import dash_app.reports.models as _reports  # noqa: F401
import datasets.models as _datasets  # noqa: F401
import jobqueue.advice.models as _advice  # noqa: F401
import jobqueue.fairshare.models as _fairshare  # noqa: F401
import jobqueue.gangs.models as _gangs  # noqa: F401
import jobqueue.holds.models as _holds  # noqa: F401
import jobqueue.images.models as _images  # noqa: F401
import jobqueue.models as _jobqueue  # noqa: F401
import jobqueue.projects.models as _projects  # noqa: F401
import jobqueue.reservations.models as _reservations  # noqa: F401
import jobqueue.results.models as _results  # noqa: F401
import jobqueue.simulation.models as _simulations  # noqa: F401
import jobqueue.storage.models as _storage  # noqa: F401
import jobqueue.usage.models as _usage  # noqa: F401
import logs.models as _logs  # noqa: F401
import marketplace.budgets.models as _budgets  # noqa: F401
import marketplace.charges.models as _charges  # noqa: F401
import marketplace.consequences.models as _consequences  # noqa: F401
import marketplace.invoices.models as _invoices  # noqa: F401
import marketplace.models as _marketplace  # noqa: F401
import marketplace.prices.models as _prices  # noqa: F401
import marketplace.reputation.models as _reputation  # noqa: F401
import marketplace.service_levels.models as _service_levels  # noqa: F401
import marketplace.sign_ups.models as _sign_ups  # noqa: F401
import marketplace.support.models as _support  # noqa: F401
import tenants.models as _tenants  # noqa: F401
from core.db import Base, SessionFactory, create_database_engine, create_session_factory
from tenants.users import passwords
from tests.cast import NOON, Cast, FrozenClock, make_cast
from tests.fixtures.docker_engine import (  # noqa: F401 - one of each for all tests of a worker
    docker_engine,
    networked_engine,
)
from tests.fixtures.memory_stores import memory_store
from tests.fixtures.mesos_site import mesos_site  # noqa: F401
from tests.fixtures.ray_head import ray_head  # noqa: F401
from tests.fixtures.s3 import s3_endpoint  # noqa: F401
from tests.fixtures.shared_routes import share_compiled_routes
from tests.fixtures.slurm import slurm_cluster  # noqa: F401
from timeseries.duckdb.hot.database import Limits
from timeseries.duckdb.store import DuckDBStore
from timeseries.store import Store

# The folders of tests are in memory where there is as much room: a disk takes ten milliseconds to
# store what servers and stores sync, thousands of times.
MEMORY, MEMORY_BYTES = Path("/dev/shm"), 4 * 2**30  # noqa: S108 - pytest makes a folder of the user

# How many examples of a property each run tries: every run draws others.
EXAMPLES, NIGHTLY_EXAMPLES = 20, 100


def is_nightly(config: pytest.Config) -> bool:
    """Return whether this run is of what takes long, see `make test-nightly`."""
    expression = config.getoption("markexpr", "")
    return "nightly" in expression and "not nightly" not in expression


def pytest_configure(config: pytest.Config) -> None:
    """Keep the machine's speed out of it: judge properties by answers alone, hash quickly."""
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    hypothesis.settings.register_profile(
        "vedette",
        deadline=None,
        max_examples=NIGHTLY_EXAMPLES if is_nightly(config) else EXAMPLES,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
        print_blob=True,
    )
    hypothesis.settings.load_profile("vedette")
    if config.option.markexpr == "not nightly":
        # Every worker would parse the whole project for constants to try, which takes 6 s.
        vars(providers)["is_local_module_file"] = lambda _path: False
    if not is_nightly(config):
        # Statements about a few rows take a third less time without a second thread.
        vars(DuckDBStore)["__init__"].__kwdefaults__["limits"] = Limits(threads=1)
    # With the least work, for hundreds of tests sign in. Servers that tests start do all of it.
    cheap = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    passwords.hashing.hasher = cheap
    share_compiled_routes()
    # Nothing to collect while the tests are imported.
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave modules and tests out of each garbage collection: there are a million objects."""
    gc.freeze()
    # Rarely: most of what a request makes needs no collection.
    gc.set_threshold(100_000, 20, 50)
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()


# What tests use, by how their files' paths begin: starting one takes seconds.
SERVER_OF = {
    "tests/contract/executor/": "dockerd",
    "tests/contract/mesos/": "dockerd",
    "tests/e2e/": "demo",
    "tests/integration/mariadb/": "mariadb",
    "tests/integration/races/": "mariadb",
    "tests/integration/test_agent_check.py": "portal",
    "tests/integration/test_backup.py": "mariadb",
    "tests/integration/test_client_certificate.py": "portal",
    "tests/integration/test_confinement.py": "dockerd",
    "tests/integration/test_container_storage.py": "dockerd",
    "tests/integration/test_containers_plugin.py": "dockerd",
    "tests/integration/test_docker_": "dockerd",
    "tests/integration/test_gateway_clients.py": "portal",
    "tests/integration/test_interrupted_migrations.py": "mariadb",
    "tests/integration/test_gang_": "dockerd",
    "tests/integration/test_job_access.py": "dockerd",
    "tests/integration/test_jobs.py": "dockerd",
    "tests/integration/test_log_bucket.py": "s3",
    "tests/integration/test_marathon_jobs.py": "dockerd",
    "tests/integration/test_mesos_executors.py": "dockerd",
    "tests/integration/test_migrations.py": "mariadb",
    "tests/integration/test_mps_containers.py": "dockerd",
    "tests/integration/test_nvml": "fake NVML",
    "tests/integration/test_open_files.py": "s3",
    "tests/integration/test_parts_in_bucket.py": "s3",
    "tests/integration/test_private_registry.py": "dockerd",
    "tests/integration/test_ray": "dockerd",  # the head is that of the executors' contract
    "tests/integration/test_restored_portal.py": "dockerd",
    "tests/integration/test_results.py": "dockerd",
    "tests/integration/test_results_bucket.py": "s3",
    "tests/integration/test_retired_agent.py": "portal",
    "tests/integration/test_s3_files.py": "s3",
    "tests/integration/test_slurm": "slurm",
    "tests/integration/test_upgrade_from_release.py": "mariadb",
    "tests/unit/collector/datasets/test_sources.py": "s3",
    # Its first request of each page compiles templates and statements.
    "tests/unit/portal/": "portal in the process",
}


RAY_TIMEOUT_SECONDS = 600

# How the paths of those tests begin that take longest, together with all that share their server.
LONGEST = (
    "tests/unit/portal/",
    "tests/e2e/",
    "tests/contract/executor/",
    "tests/integration/mariadb/",
    "tests/unit/timeseries/test_duckdb_sealing.py",
    "tests/unit/timeseries/test_rollups.py",
    "tests/integration/test_many_hosts.py",
    "tests/integration/test_own_tls.py",
    "tests/integration/test_restarted_portal.py",
    "tests/integration/test_agent_certificates.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest: a worker that gets it last ends long after the others."""

    def rank(item: pytest.Item) -> int:
        ranks = (n for n, start in enumerate(LONGEST) if item.nodeid.startswith(start))
        return next(ranks, len(LONGEST))

    items.sort(key=rank)
    for item in items:
        # Whoever is the first waits for Ray's head, see `tests.fixtures.ray_head`.
        if item.get_closest_marker("needs_ray") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(RAY_TIMEOUT_SECONDS))


class OneWorkerPerServer(LoadFileScheduling):  # type: ignore[misc] # pytest-xdist ships no types
    """Gives the files whose tests share one server to one worker."""

    def _split_scope(self, nodeid: str) -> str:
        for start, server in SERVER_OF.items():
            if nodeid.startswith(start):
                return server
        return str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> OneWorkerPerServer:
    return OneWorkerPerServer(config, log)


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with every table and no rows: to copy it is much quicker than to make it."""
    path = tmp_path_factory.mktemp("empty") / "vedette.db"
    engine = create_database_engine(f"sqlite:///{path}")
    Base.metadata.create_all(engine)
    engine.dispose()
    # Small pages: there are hundreds of tables and indexes with a page each, copied for each test.
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
        for statement in ("journal_mode=DELETE", "page_size=1024"):
            connection.execute(f"PRAGMA {statement}")
        connection.execute("VACUUM")
        connection.execute(f"PRAGMA journal_mode={mode}")
    return path


@pytest.fixture(scope="session")
def shared_engine() -> Engine:
    """One engine for all tests, which keeps its compiled statements: many tests need the same."""
    engine = create_database_engine("sqlite:///set/by/the/fixture/engine")

    @event.listens_for(engine, "do_connect")
    def open_file(_dialect: Dialect, _record: object, args: list[str], _options: object) -> None:
        args[0] = str(engine.get_execution_options()["file"])

    @event.listens_for(engine, "connect")
    def wait_for_no_disk(connection: DBAPIConnection, _record: object) -> None:
        connection.cursor().execute("PRAGMA synchronous=OFF")

    return engine


@dataclass(frozen=True, slots=True)
class Template:
    """A SQLite file that tests work on a copy of, and the pickled cast that is in it."""

    path: Path
    cast: bytes | None = None

    def extended(self, path: Path, fill: Callable[[Session], Cast]) -> "Template":
        """Return a copy at another path with more rows; `fill` returns the cast."""
        shutil.copyfile(self.path, path)
        engine = create_database_engine(f"sqlite:///{path}")
        with create_session_factory(engine).begin() as session:
            cast = fill(session)
        engine.dispose()
        return Template(path, pickle.dumps(cast))

    def load_cast(self) -> Cast:
        """Return a cast of the test's own."""
        assert self.cast is not None
        return cast_type("Cast", pickle.loads(self.cast))  # noqa: S301 - dumped above


@pytest.fixture(scope="session")
def cast_database(empty_database: Path) -> Template:
    """A SQLite file with the cast: most tests need it."""
    return Template(empty_database).extended(empty_database.with_name("cast.db"), make_cast)


@pytest.fixture
def prepared_database(
    request: pytest.FixtureRequest, empty_database: Path, cast_database: Template
) -> Template:
    """What this test's database is a copy of."""
    has_cast = "cast" in request.fixturenames and request.getfixturevalue("clock").now == NOON
    return cast_database if has_cast else Template(empty_database)


@pytest.fixture
def engine(shared_engine: Engine, prepared_database: Template, tmp_path: Path) -> Iterator[Engine]:
    """A fresh SQLite file with every table, and with the cast for tests that ask for it."""
    path = shutil.copyfile(prepared_database.path, tmp_path / "vedette.db")
    shared_engine.update_execution_options(file=path, template=prepared_database)
    yield shared_engine
    shared_engine.dispose()


@pytest.fixture
def sessions(engine: Engine) -> SessionFactory:
    """The session factory that services, APIs and loops share."""
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
    template: Template | None = sessions.kw["bind"].get_execution_options().get("template")
    if template is not None and template.cast is not None:
        return template.load_cast()
    with sessions.begin() as session:
        return make_cast(session, now=clock.now)


Fill = Callable[[Session, Cast], str]


@pytest.fixture(scope="session")
def filled_databases() -> dict[Fill, tuple[Path, str]]:
    """Copies of databases after a function filled them, with what it returned."""
    return {}


@pytest.fixture
def prefill(
    filled_databases: dict[Fill, tuple[Path, str]],
    tmp_path_factory: pytest.TempPathFactory,
    sessions: SessionFactory,
    cast: Cast,
) -> Callable[[Fill], str]:
    """Fills the test's database by a function, once: later tests get a copy of what it made."""

    def prefill(fill: Fill) -> str:
        engine = sessions.kw["bind"]
        if engine.dialect.name != "sqlite":
            with sessions.begin() as session:
                return fill(session, cast)
        path = Path(engine.get_execution_options()["file"])
        if fill in filled_databases:
            engine.dispose()
            shutil.copyfile(filled_databases[fill][0], path)
            return filled_databases[fill][1]
        with sessions.begin() as session:
            value = fill(session, cast)
        engine.dispose()  # SQLite moves its log into the file
        copy = tmp_path_factory.mktemp("filled") / "vedette.db"
        filled_databases[fill] = shutil.copyfile(path, copy), value
        return value

    return prefill


# What every empty store answers alike.
READS = frozenset(
    {
        *("query_range", "query_columns", "samples", "latest", "scan", "extent"),
        *("measurements", "fields", "tags", "tag_values"),
    }
)


class LazyStore:
    """A store that opens when it is first written to: most tests only read an empty one.

    Args:
        open_store: opens the store.
        empty: answers until then, for all tests; None: opens at the first read, too.
    """

    notice = ""
    takes_many_senders = DuckDBStore.takes_many_senders
    takes_series = DuckDBStore.takes_series
    reads_many_tenants = DuckDBStore.reads_many_tenants

    def __init__(
        self, open_store: Callable[[], DuckDBStore], empty: DuckDBStore | None = None
    ) -> None:
        self._open_store, self._empty = open_store, empty
        self._fill: Callable[[Store], None] = lambda _store: None

    def show(self, filled: DuckDBStore, fill: Callable[[Store], None]) -> None:
        """Answer reads by a store that tests share; one that writes fills a store of its own."""
        self._empty, self._fill = filled, fill

    @cached_property
    def opened(self) -> DuckDBStore:
        store = self._open_store()
        self._fill(store)
        return store

    def __getattr__(self, name: str) -> object:
        if self._empty is None or "opened" in vars(self) or name not in READS:
            return getattr(self.opened, name)
        return partial(self._read, name)

    def _read(self, name: str, *values: object, **options: object) -> object:
        answering = self.opened if "opened" in vars(self) else self._empty
        return getattr(answering, name)(*values, **options)

    @classmethod
    @contextmanager
    def lasting(
        cls, open_store: Callable[[], DuckDBStore], empty: DuckDBStore | None = None
    ) -> Iterator[Store]:
        """Close what was opened in the block."""
        store = cls(open_store, empty)
        yield cast_type("Store", store)
        if "opened" in vars(store):
            store.opened.close()


@pytest.fixture(scope="session")
def empty_store() -> Iterator[DuckDBStore]:
    """A store in memory that nothing is written to."""
    store = memory_store()
    yield store
    store.close()


@pytest.fixture
def store(empty_store: DuckDBStore) -> Iterator[Store]:
    """An empty store in memory."""
    with LazyStore.lasting(memory_store, empty_store) as store:
        yield store
