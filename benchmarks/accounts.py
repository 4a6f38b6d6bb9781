"""Pages of people and accounts on MariaDB: sign-in, a long list of appliances, a long audit log.

    python -m benchmarks.accounts [--quick] [--output FILE]

The portal answers in this process through its whole WSGI stack: the lock, the page, the templates.
So a figure is all that a request costs but the network. Signing in includes argon2id with the
portal's own parameters, which is measured alone as well. Statements and commits are counted where
they leave for the database, and each question is asked of a small database too: the counts of
statements must be the same.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import Engine, event, insert, text
from werkzeug.test import TestResponse

from benchmarks import accounts_data
from benchmarks.figures import Promise, document, median, percentile, write_document
from benchmarks.mariadb import mariadb
from benchmarks.processes import BenchmarkError
from core.clock import utc_now
from core.db import create_database_engine, create_session_factory
from core.migrations import upgrade_database
from core.settings import ServerSettings
from portal.app import create_portal
from tenants.models import Appliance, Role
from tenants.tenants import create_tenant
from tenants.users.members import create_user
from tenants.users.passwords import hash_password, verify_password
from timeseries.open_store import open_store

MOST_MILLISECONDS = 100.0
MILLISECONDS = 1_000
EMAIL, PASSWORD = "alice@acme.example", "a password of the benchmark"
PAGE_SIZE = 50
COMMIT = "COMMIT"
# These are requested without signing in.
STRANGERS = frozenset({"sign-in", "argon2id alone"})
_SHOWN_CHARACTERS = 300
_CSRF = re.compile(r'name="csrf-token" content="([^"]+)"')

# Makes ready what is not measured, and returns what is.
Ask = Callable[[FlaskClient], Callable[[], None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The size of the database, and the number of runs of each question."""

    appliances: int
    entries: int
    runs: int


FULL = Plan(appliances=10_000, entries=1_000_000, runs=50)
QUICK = Plan(appliances=500, entries=20_000, runs=5)
SMALL = Plan(appliances=60, entries=200, runs=1)


def measure(plan: Plan) -> dict[str, object]:
    """Fill a small and a large database and ask both; return the document."""
    started_at = utc_now()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="vedette-bench-")))
        server = stack.enter_context(mariadb(folder))
        few = _asked(server.database("small"), folder / "small", SMALL)
        many = _asked(server.database("large"), folder / "large", plan)
    results = {
        name: {**figures, "statements_of_a_small_database": few[name]["statements"]}
        for name, figures in many.items()
    }
    return document(
        "accounts",
        started_at=started_at,
        settings=asdict(plan),
        results=results,
        promises=promises(results),
    )


def promises(results: Mapping[str, Mapping[str, float | None]]) -> list[Promise]:
    """Return what is promised: the time of each question, and that size adds no statement."""
    promised = []
    for name, figures in results.items():
        small_count, count = figures["statements_of_a_small_database"], figures["statements"]
        added = None if small_count is None or count is None else max(0.0, count - small_count)
        promised += [
            Promise(
                name=f"{name}, median",
                bound=MOST_MILLISECONDS,
                unit="ms",
                measured=figures["milliseconds"],
            ),
            Promise(name=f"{name}, statements added by size", bound=0.0, unit="", measured=added),
        ]
    return promised


def _asked(url: str, folder: Path, plan: Plan) -> dict[str, dict[str, float | None]]:
    with _portal(url, folder, plan) as (app, engine):
        middle = accounts_data.instant_of(plan.entries // 2)
        asks: dict[str, Ask] = {"sign-in": _sign_in, "argon2id alone": _hash_alone}
        later = accounts_data.instant_of(plan.entries // 2 + 100)
        last_page = -(-plan.appliances // PAGE_SIZE)
        asked = accounts_data.questions(
            since=_stamp(middle), until=_stamp(later), last_page=last_page
        )
        for name, address in asked.items():
            asks[name] = _getter(address)
        asks["audit deep page"] = _getter(f"/api/v1/audit?before={accounts_data.entry_id(100)}")
        return {
            name: _timed(app, engine, ask, runs=plan.runs, signed_in=name not in STRANGERS)
            for name, ask in asks.items()
        }


def _timed(
    app: Flask, engine: Engine, ask: Ask, *, runs: int, signed_in: bool
) -> dict[str, float | None]:
    took, counts, commits = [], [], []
    client = app.test_client()
    if signed_in:
        _sign_in(client)()
    ask(client if signed_in else app.test_client())()
    for _ in range(runs):
        asked = ask(client if signed_in else app.test_client())
        with _counted(engine) as statements:
            began = time.perf_counter()
            asked()
            took.append((time.perf_counter() - began) * MILLISECONDS)
        commits.append(statements.count(COMMIT))
        counts.append(len(statements) - commits[-1])
    return {
        "milliseconds": median(took),
        "milliseconds_p95": percentile(took, 95),
        "statements": float(max(counts)),
        "commits": float(max(commits)),
    }


def _getter(address: str) -> Ask:
    def ready(client: FlaskClient) -> Callable[[], None]:
        return lambda: _check(client.get(address), HTTPStatus.OK, address)

    return ready


def _sign_in(client: FlaskClient) -> Callable[[], None]:
    match = _CSRF.search(client.get("/login").text)
    if match is None:
        raise BenchmarkError("the login form has no CSRF token")
    form = {"csrf_token": match[1], "email": EMAIL, "password": PASSWORD}
    return lambda: _check(client.post("/login", data=form), HTTPStatus.FOUND, "/login")


def _hash_alone(_client: FlaskClient) -> Callable[[], None]:
    made = hash_password(PASSWORD)

    def verify() -> None:
        if not verify_password(made, PASSWORD):
            raise BenchmarkError("a password does not fit its own hash")

    return verify


def _check(answer: TestResponse, expected: HTTPStatus, address: str) -> None:
    if answer.status_code != expected:
        end = answer.text[-_SHOWN_CHARACTERS:]
        raise BenchmarkError(f"{address} was answered {answer.status_code}: {end}")


@contextmanager
def _portal(url: str, folder: Path, plan: Plan) -> Iterator[tuple[Flask, Engine]]:
    engine = create_database_engine(url)
    store = open_store("duckdb:///:memory:")
    try:
        upgrade_database(engine)
        _fill(engine, plan)
        folder.mkdir()
        settings = ServerSettings(data_dir=folder, database_url=url)
        yield create_portal(settings, sessions=create_session_factory(engine), store=store), engine
    finally:
        store.close()
        engine.dispose()


def _fill(engine: Engine, plan: Plan) -> None:
    now = utc_now()
    with create_session_factory(engine).begin() as session:
        tenant = create_tenant(session, name="Acme", now=now)
        create_user(
            session,
            tenant_id=tenant.id,
            email=EMAIL,
            name="Alice",
            role=Role.ADMIN,
            password=PASSWORD,
            now=now,
        )
        rows = accounts_data.appliances(tenant.id, plan.appliances, now=now)
        session.execute(insert(Appliance), list(rows))
    with engine.begin() as connection:
        values = {"chain": tenant.id, "entries": plan.entries}
        connection.execute(text(accounts_data.ENTRIES_SQL), values)
        connection.execute(text(accounts_data.HEAD_SQL), values)
        connection.execute(text("ANALYZE TABLE audit_entries, appliances"))


@contextmanager
def _counted(engine: Engine) -> Iterator[list[str]]:
    statements: list[str] = []

    def note(*arguments: object) -> None:
        statements.append(str(arguments[2]))

    def note_commit(_connection: object) -> None:
        statements.append(COMMIT)

    event.listen(engine, "before_cursor_execute", note)
    event.listen(engine, "commit", note_commit)
    try:
        yield statements
    finally:
        event.remove(engine, "before_cursor_execute", note)
        event.remove(engine, "commit", note_commit)


def _stamp(instant: datetime) -> str:
    return instant.strftime("%Y-%m-%dT%H:%M:%SZ")


@click.command()
@click.option("--quick", "is_quick", is_flag=True, help="A small database: does it run?")
@click.option("--output", type=click.Path(path_type=Path), help="Keep the document here too.")
def main(*, is_quick: bool, output: Path | None) -> None:
    """Measure accounts, and print JSON."""
    write_document(measure(QUICK if is_quick else FULL), output)


if __name__ == "__main__":
    main()
