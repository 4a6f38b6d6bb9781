"""`/healthz`, `/readyz` and `/metrics`: who may read what, and what they report."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from flask import Flask
from sqlalchemy import event
from sqlalchemy.engine.interfaces import DBAPIConnection
from starlette.types import ASGIApp

from cli.asgi import create_asgi_app
from cli.backend import Backend
from core import disk_space
from core.db import SessionFactory
from core.leases import SCHEDULER_LEASE, Lease
from core.request_notes import request_notes
from core.settings import ServerSettings
from tenants.models import User
from tenants.users.sightings import Sightings
from tenants.users.tokens import create_api_token
from tests.cast import BOX_KEY, Cast, FrozenClock, scope_of
from tests.unit.jobqueue.builders import submit
from timeseries.store import Store, StoreUnavailableError

OUTSIDE, LOCAL, PROXY = "203.0.113.9", "127.0.0.1", "10.0.0.2"
TOKEN = "a token of Prometheus"


@pytest.fixture
def settings(tmp_path: Path) -> ServerSettings:
    return ServerSettings(
        data_dir=tmp_path,
        encryption_keys=BOX_KEY,
        metrics_token=TOKEN,
        trusted_proxies=PROXY,
        log_url=str(tmp_path / "job-logs"),
        requests_per_second_per_user=0.0,
        requests_per_second_per_address=0.0,
    )


@pytest.fixture
def backend(
    settings: ServerSettings, sessions: SessionFactory, store: Store, clock: FrozenClock
) -> Backend:
    with sessions.begin() as session:
        expires_at = clock.advance(15)
        session.add(Lease(name=SCHEDULER_LEASE, holder="here:1", expires_at=expires_at))
    clock.advance(-15)
    return Backend(settings, sessions, store, Sightings(sessions))


@pytest.fixture
def app(backend: Backend, shared_portal: Flask, clock: FrozenClock) -> ASGIApp:
    assert shared_portal
    return create_asgi_app(backend, clock=clock)


def get(
    app: ASGIApp, path: str, *, client: str = LOCAL, headers: Mapping[str, str] | None = None
) -> httpx.Response:
    return asyncio.run(_request(app, "GET", path, client=client, headers=headers))


async def _request(
    app: ASGIApp,
    method: str,
    path: str,
    *,
    client: str = LOCAL,
    headers: Mapping[str, str] | None = None,
) -> httpx.Response:
    transport = httpx.ASGITransport(app, client=(client, 50_000))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as http:
        return await http.request(method, path, headers=headers)


def bearer(user: User, sessions: SessionFactory, clock: FrozenClock) -> dict[str, str]:
    with sessions.begin() as session:
        _token, secret = create_api_token(session, scope_of(user), name="test", now=clock.now)
    return {"Authorization": f"Bearer {secret}"}


class AwayStore:
    """A store whose server does not answer."""

    def fields(self, _measurement: str, *, tenants: tuple[str, ...] | None) -> dict[str, str]:
        raise StoreUnavailableError(f"10.0.0.9:8428 does not answer, asked for {tenants}.")

    def close(self) -> None:
        pass


@pytest.fixture
def storeless(backend: Backend, shared_portal: Flask, clock: FrozenClock) -> ASGIApp:
    assert shared_portal
    return create_asgi_app(replace(backend, store=AwayStore()), clock=clock)  # type: ignore[arg-type]


def test_a_server_that_can_work_is_ready(app: ASGIApp) -> None:
    answer = get(app, "/readyz", client=OUTSIDE)
    assert answer.status_code == 200
    assert answer.json() == {"status": "ready", "not_ready": [], "warnings": []}


def test_what_is_away_is_named_and_described_to_monitors_alone(storeless: ASGIApp) -> None:
    public, local = (get(storeless, "/readyz", client=client) for client in (OUTSIDE, LOCAL))
    assert (public.status_code, local.status_code) == (503, 503)
    assert int(public.headers["Retry-After"]) > 0
    assert public.json() == {"status": "not ready", "not_ready": ["store"], "warnings": []}
    assert "10.0.0.9" in local.json()["details"]["store"]


def test_operators_read_the_details_from_anywhere_and_users_do_not(
    storeless: ASGIApp, cast: Cast, sessions: SessionFactory, clock: FrozenClock
) -> None:
    def details(user: User) -> bool:
        headers = bearer(user, sessions, clock)
        return "details" in get(storeless, "/readyz", client=OUTSIDE, headers=headers).json()

    assert details(cast.olivia)
    assert not details(cast.alice)


def test_a_database_that_cannot_be_written_is_not_ready_but_the_process_is_alive(
    app: ASGIApp, sessions: SessionFactory
) -> None:
    with _read_only(sessions):
        answer = get(app, "/readyz")
        assert get(app, "/healthz", client=OUTSIDE).text == "ok\n"
    assert answer.status_code == 503
    assert answer.json()["not_ready"] == ["database"]
    assert "readonly" in answer.json()["details"]["database"]


def test_a_full_disk_is_not_ready(app: ASGIApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_space, "MIN_FREE_BYTES", 2**80)
    assert get(app, "/readyz").json()["not_ready"] == ["disk"]


def test_a_scheduler_that_stands_still_is_a_warning(app: ASGIApp, clock: FrozenClock) -> None:
    clock.advance(16)
    answer = get(app, "/readyz")
    assert answer.status_code == 200
    assert answer.json()["warnings"] == ["scheduler"]
    assert "lease" in answer.json()["details"]["scheduler"]


@pytest.mark.parametrize(
    ("client", "headers", "status"),
    [
        (LOCAL, {}, 200),
        (OUTSIDE, {}, 403),
        (OUTSIDE, {"Authorization": f"Bearer {TOKEN}"}, 200),
        (OUTSIDE, {"Authorization": "Bearer another"}, 403),
        # A proxy on this host that is not trusted: everybody has its address.
        (LOCAL, {"X-Forwarded-For": OUTSIDE}, 403),
        (PROXY, {"X-Forwarded-For": OUTSIDE}, 403),
        (PROXY, {"X-Forwarded-For": LOCAL}, 200),
    ],
)
def test_metrics_are_for_monitors(
    app: ASGIApp, client: str, headers: dict[str, str], status: int
) -> None:
    assert get(app, "/metrics", client=client, headers=headers).status_code == status


def test_routes_are_patterns(
    app: ASGIApp, cast: Cast, sessions: SessionFactory, clock: FrozenClock
) -> None:
    headers = bearer(cast.alice, sessions, clock)
    paths = [f"/api/v1/jobs/{cast.acme.id}{number}" for number in range(3)]
    for path in (*paths, "/no/such/page", "/agent/v1/no-such", "/api/v1/jobs/x/follow"):
        get(app, path, headers=headers)
    text = get(app, "/metrics").text
    assert 'route="/api/v1/jobs/<job_id>",status="4xx"' in text
    assert cast.acme.id not in text
    assert "such" not in text


def test_a_scrape_says_that_the_database_is_away(app: ASGIApp, sessions: SessionFactory) -> None:
    engine = sessions.kw["bind"]
    engine.dispose()
    engine.update_execution_options(file="/no/such/folder/vedette.db")
    answer = get(app, "/metrics")
    assert answer.status_code == 200
    assert "\nvedette_database_up 0.0\n" in answer.text


@pytest.mark.parametrize(("client", "is_taken"), [(PROXY, True), (OUTSIDE, False)])
def test_request_ids_are_taken_from_trusted_proxies_alone(
    app: ASGIApp, client: str, *, is_taken: bool
) -> None:
    headers = {"X-Request-Id": "abc-1"}
    answer = get(app, "/healthz", client=client, headers=headers)
    assert (answer.headers["X-Request-Id"] == "abc-1") is is_taken
    assert answer.headers["X-Request-Id"] != get(app, "/healthz").headers["X-Request-Id"]


def test_what_a_request_logs_has_its_ids(
    app: ASGIApp, cast: Cast, sessions: SessionFactory, clock: FrozenClock
) -> None:
    headers = bearer(cast.bob, sessions, clock)
    with sessions.begin() as session:
        job_id = submit(session, cast.bob).id
    notes: list[dict[str, str]] = []

    class Recorder(logging.Handler):
        def emit(self, _record: logging.LogRecord) -> None:
            notes.append(dict(request_notes()))

    recorder = Recorder()
    logging.getLogger("core.db").addHandler(recorder)
    try:
        get(app, "/api/v1/jobs", headers=headers)  # notes when the token was used
        with _read_only(sessions):
            path = f"/api/v1/jobs/{job_id}/stop"
            answer = asyncio.run(_request(app, "POST", path, headers=headers))
    finally:
        logging.getLogger("core.db").removeHandler(recorder)
    assert answer.status_code == 503
    del notes[-1]["route"]
    assert notes[-1] == {
        "request_id": answer.headers["X-Request-Id"],
        "user_id": cast.bob.id,
        "tenant_id": cast.acme.id,
        "job_id": job_id,
    }


class _read_only:  # noqa: N801 - a context manager
    """Let the database refuse writes, as on a full disk."""

    def __init__(self, sessions: SessionFactory) -> None:
        self._engine = sessions.kw["bind"]

    def __enter__(self) -> None:
        self._engine.dispose()
        event.listen(self._engine, "connect", _refuse_writes)

    def __exit__(self, *_error: object) -> None:
        event.remove(self._engine, "connect", _refuse_writes)
        self._engine.dispose()


def _refuse_writes(connection: DBAPIConnection, _record: object) -> None:
    connection.cursor().execute("PRAGMA query_only=ON")
