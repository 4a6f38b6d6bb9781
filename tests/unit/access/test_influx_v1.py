"""`/write` and `/ping` for clients of InfluxDB 1."""

import gzip
from typing import Any

import pytest

from core.clock import NS_PER_SECOND, to_ns
from tests.cast import NOON
from tests.unit.access.conftest import MAX_BODY_BYTES, SECRET, AgentAPI
from tests.unit.access.test_writing_samples import latest
from timeseries.store import Store

NOON_NS = to_ns(NOON)
LINE = f"cpu usage_percent=12.5 {NOON_NS}"

CREDENTIALS: list[dict[str, Any]] = [
    {"params": {"u": "anyone", "p": SECRET}},
    {"params": {"p": SECRET}},
    {"auth": ("anyone", SECRET)},
    {"headers": {"Authorization": f"Token anyone:{SECRET}"}},
    {"headers": {"Authorization": f"Token {SECRET}"}},
    {"headers": {"Authorization": f"Bearer {SECRET}"}},
]


@pytest.fixture
def anonymous(api: AgentAPI) -> AgentAPI:
    """The api with nobody known before it."""
    del api.http.headers["Authorization"]
    return api


@pytest.mark.parametrize(
    "credentials", CREDENTIALS, ids=["query", "p", "basic", "token pair", "token", "bearer"]
)
def test_the_agents_token_is_the_password(
    anonymous: AgentAPI, store: Store, credentials: dict[str, Any]
) -> None:
    response = anonymous.request("POST", "/write", data=LINE, **credentials)
    assert (response.status_code, response.content) == (204, b"")
    assert latest(store)[0].values == {"usage_percent": 12.5}


@pytest.mark.parametrize(
    "credentials",
    [{}, {"params": {"u": SECRET}}, {"headers": {"Authorization": "Basic !"}}],
    ids=["none", "no password", "no base64"],
)
def test_nobody_known_is_401_in_version_1s_words(
    anonymous: AgentAPI, credentials: dict[str, Any]
) -> None:
    response = anonymous.request("POST", "/write", data=LINE, **credentials)
    assert response.status_code == 401
    assert response.json() == {"error": response.headers["X-InfluxDB-Error"]}
    assert response.headers["WWW-Authenticate"].startswith("Basic")
    assert "the agent token as the password" in response.json()["error"]


@pytest.mark.parametrize(
    ("precision", "units"),
    [
        ("n", 1),
        ("ns", 1),
        ("u", 1_000),
        ("us", 1_000),
        ("ms", 1_000_000),
        ("s", NS_PER_SECOND),
        ("m", 60 * NS_PER_SECOND),
        ("h", 3600 * NS_PER_SECOND),
    ],
)
def test_times_are_read_in_the_precision_asked_for(
    api: AgentAPI, store: Store, precision: str, units: int
) -> None:
    params = {"db": "telegraf", "rp": "autogen", "precision": precision}
    line = f"cpu usage_percent=1 {NOON_NS // units}"
    assert api.request("POST", "/write", data=line, params=params).status_code == 204
    assert latest(store)[0].time_ns == NOON_NS


def test_an_unknown_precision_is_refused(api: AgentAPI) -> None:
    response = api.request("POST", "/write", data=LINE, params={"precision": "d"})
    assert response.status_code == 400
    assert "use one of n, ns, u, us, ms, s, m, h" in response.json()["error"]


def test_good_lines_are_stored_and_the_response_counts_those_dropped(
    api: AgentAPI, store: Store
) -> None:
    response = api.request("POST", "/write", data=f"cpu usage_percent=\n{LINE}\nö\n".encode())
    assert response.status_code == 400
    error = response.json()["error"]
    assert error.startswith("partial write: 2 of 3 lines were not stored: line 1: ")
    assert error.endswith("dropped=2")
    assert response.headers["X-InfluxDB-Error"].isascii()
    assert latest(store)[0].values == {"usage_percent": 12.5}


def test_gzip_is_unpacked_and_too_much_is_413(api: AgentAPI, store: Store) -> None:
    packed = gzip.compress(LINE.encode())
    headers = {"Content-Encoding": "gzip"}
    assert api.request("POST", "/write", data=packed, headers=headers).status_code == 204
    assert latest(store) != []
    response = api.request("POST", "/write", data=b"x" * (MAX_BODY_BYTES + 1))
    assert (response.status_code, set(response.json())) == (413, {"error"})


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_ping_is_answered_to_anybody(anonymous: AgentAPI, method: str) -> None:
    response = anonymous.request(method, "/ping")
    assert (response.status_code, response.content) == (204, b"")
    assert response.headers["X-Influxdb-Version"] == "1.8.0"


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_query_is_rejected_with_a_hint(api: AgentAPI, method: str) -> None:
    response = api.request(method, "/query", params={"q": "CREATE DATABASE telegraf"})
    assert response.status_code == 404
    assert "skip_database_creation" in response.json()["error"]
