"""Pages of people and accounts on MariaDB: sign-in, a long list of appliances, a long audit log.

The portal answers in this process through its whole WSGI stack: the lock, the page, the templates.
So a figure is all that a request costs but the network. Signing in includes argon2id with the
portal's own parameters, which is measured alone as well. Statements are counted where they leave
for the database, and each question is asked of a small database too: the counts must be the same.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path

from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import Engine, text
from werkzeug.test import TestResponse

from benchmarks.shared.document import BenchmarkError, Figures, Outcome, Promise, timed
from benchmarks.shared.filling import appliance_rows, insert_rows
from benchmarks.shared.servers import mariadb, opened
from core.clock import utc_now
from core.db import create_database_engine, create_session_factory
from core.migrations import upgrade_database
from core.settings import ServerSettings
from portal.app import create_portal
from tenants.models import Appliance, Role
from tenants.tenants import create_tenant
from tenants.users.members import create_user
from tenants.users.passwords import hash_password, verify_password
from tests.fixtures.statements import counted_statements

MOST_MILLISECONDS = 100.0
EMAIL, PASSWORD = "alice@acme.example", "a password of the benchmark"
PAGE_SIZE = 50
FIRST_AT, SECONDS_APART = datetime(2026, 1, 1, tzinfo=UTC), 10
ID_PREFIX = "00000000-0000-7000-8000-"
_CSRF = re.compile(r'name="csrf-token" content="([^"]+)"')

# The server itself makes a million entries, from MariaDB's sequence engine. Their hashes are no
# chain: lists do not use them. Every thousandth entry is of a rare kind, and a user has no entry.
ENTRIES_SQL = f"""
INSERT INTO audit_entries (id, chain, number, at, actor_id, actor_name, via, action, target_kind,
    target_id, target_name, `before`, `after`, reason, address, user_agent, previous_hash, hash)
SELECT CONCAT('{ID_PREFIX}', LPAD(HEX(1000000000 + seq), 12, '0')), :chain, seq,
    TIMESTAMPADD(SECOND, seq * {SECONDS_APART}, '2026-01-01'), NULL,
    CONCAT('user', seq % 200, '@acme.example'), 'browser',
    CASE WHEN seq % 1000 = 0 THEN 'rule.renamed' WHEN seq % 3 = 0 THEN 'job.submitted'
         ELSE 'session.started' END,
    'thing', CONCAT('{ID_PREFIX}', LPAD(HEX(seq % 5000), 12, '0')),
    CONCAT('thing ', seq % 5000), '{{"name": "before"}}', '{{"name": "after", "gpus": 8}}',
    '', '192.0.2.7', 'Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0',
    SHA2(seq - 1, 256), SHA2(seq, 256)
FROM seq_1_to_1000000 WHERE seq <= :entries
"""  # noqa: S608 - of constants alone
HEAD_SQL = "INSERT INTO audit_heads VALUES (:chain, :entries, SHA2(:entries, 256))"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The size of the database, and the number of runs of each question."""

    appliances: int = 10_000
    entries: int = 1_000_000
    runs: int = 50


FULL = Plan()
QUICK = Plan(appliances=500, entries=20_000, runs=5)
SMALL = Plan(appliances=60, entries=200, runs=5)


def measure(plan: Plan, folder: Path) -> Outcome:
    """Fill a small and a large database and ask both."""
    with mariadb(folder / "mariadb") as server:
        few = _asked(server.new_database(), folder / "small", SMALL)
        many = _asked(server.new_database(), folder / "large", plan)
    results, promises = {}, []
    for name, figures in many.items():
        small_count, count = few[name]["statements"] or 0.0, figures["statements"] or 0.0
        results[name] = {**figures, "statements_of_a_small_database": small_count}
        added = max(0.0, count - small_count)
        promises += [
            Promise(f"{name}, median", figures["milliseconds"], MOST_MILLISECONDS, "ms"),
            Promise(f"{name}, statements added by size", added, 0.0, ""),
        ]
    return Outcome(results, promises)


def questions(plan: Plan) -> dict[str, str]:
    """Return the addresses that are requested, by name; the times are in the log's middle."""
    page, audit = f"/api/v1/appliances?page_size={PAGE_SIZE}", "/api/v1/audit"
    since, until = (
        f"{FIRST_AT + timedelta(seconds=number * SECONDS_APART):%Y-%m-%dT%H:%M:%SZ}"
        for number in (plan.entries // 2, plan.entries // 2 + 100)
    )
    return {
        "appliances page": "/appliances",
        "appliances page searched": "/appliances?search=gpu-0004",
        "appliances page by state": "/appliances?sort=status",
        "appliances by REST": page,
        "appliances by three names": f"{page}&sort=-gpus,site,-name",
        "appliances by what is nowhere": f"{page}&search=nowhere",
        "appliances, last page": f"{page}&page={-(-plan.appliances // PAGE_SIZE)}",
        "audit page": "/audit",
        "audit by REST": f"{audit}?page_size={PAGE_SIZE}",
        "audit by action": f"{audit}?action=rule.renamed",
        "audit by kind": f"{audit}?action=membership",
        "audit by actor": f"{audit}?actor=nobody@acme.example",
        "audit by target": f"{audit}?target={ID_PREFIX}0000000000FF",
        "audit by a text that is nowhere": f"{audit}?text=nowhere",
        "audit by time": f"{audit}?since={since}&until={until}",
        "audit deep page": f"{audit}?before={ID_PREFIX}{1_000_000_100:012X}",
    }


def _asked(url: str, folder: Path, plan: Plan) -> dict[str, Figures]:
    with _portal(url, folder, plan) as (app, engine):
        # Each sign-in has a form of its own, which is not measured: to warm up, timed, counted.
        forms = [_filled_form(app) for _ in range(1 + plan.runs + 1)]
        hashed = hash_password(PASSWORD)
        actions: dict[str, Callable[[], object]] = {
            "sign-in": lambda: _sign_in(*forms.pop()),
            "argon2id alone": lambda: verify_password(hashed, PASSWORD),
        }
        alice = app.test_client()
        _sign_in(*_filled_form(app, alice))
        for name, address in questions(plan).items():
            actions[name] = lambda address=address: _check(  # type: ignore[misc]
                alice.get(address), HTTPStatus.OK, address
            )
        return {name: _measured(engine, action, plan.runs) for name, action in actions.items()}


def _measured(engine: Engine, action: Callable[[], object], runs: int) -> Figures:
    figures = timed(action, runs)
    with counted_statements(engine) as statements:
        action()
    return {**figures, "statements": float(len(statements))}


Form = tuple[FlaskClient, dict[str, str]]


def _filled_form(app: Flask, client: FlaskClient | None = None) -> Form:
    client = client or app.test_client()
    match = _CSRF.search(client.get("/login").text)
    if match is None:
        raise BenchmarkError("the login form has no CSRF token")
    return client, {"csrf_token": match[1], "email": EMAIL, "password": PASSWORD}


def _sign_in(client: FlaskClient, form: dict[str, str]) -> None:
    _check(client.post("/login", data=form), HTTPStatus.FOUND, "/login")


def _check(answer: TestResponse, expected: HTTPStatus, address: str) -> None:
    if answer.status_code != expected:
        raise BenchmarkError(f"{address} answered {answer.status_code}: {answer.text[-300:]}")


@contextmanager
def _portal(url: str, folder: Path, plan: Plan) -> Iterator[tuple[Flask, Engine]]:
    engine = create_database_engine(url)
    with opened("duckdb:///:memory:") as store:
        upgrade_database(engine)
        _fill(engine, plan)
        folder.mkdir()
        settings = ServerSettings(data_dir=folder, database_url=url)
        sessions = create_session_factory(engine)
        yield create_portal(settings, sessions=sessions, store=store), engine
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
        rows = list(appliance_rows(tenant.id, plan.appliances, now=now))
        insert_rows(session, Appliance, rows)
    with engine.begin() as connection:
        values = {"chain": tenant.id, "entries": plan.entries}
        connection.execute(text(ENTRIES_SQL), values)
        connection.execute(text(HEAD_SQL), values)
        connection.execute(text("ANALYZE TABLE audit_entries, appliances"))
