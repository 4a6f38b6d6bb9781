"""One server that stands alone on the network, and clients that try to stop it.

Deadlines and bounds are short. While a client attacks, others must be answered.
"""

import gzip
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from starlette.routing import Route

from access.app import create_access_app
from cli.database import open_database
from collector.sending.access_points import AccessPoints
from collector.sending.portal_connection import PortalConnection
from protocol.enrollment import EnrollRequest
from protocol.inventory import MAX_GPUS, MAX_NVLINKS, GPUInfo, Inventory, NVLinkInfo
from tests.deployment import ALICE, Deployment, api_token, make_deployment, serving
from tests.fixtures.hostile_clients import Target, drip, head, is_cut_off, read_all
from tests.fixtures.polling import eventually
from timeseries.duckdb.store import DuckDBStore

pytestmark = pytest.mark.timeout(300)

INVENTORY = {"hostname": "dgx-1"}
EMPTY_MEMBERS = gzip.compress(b"") * 100_000
HOSTILE_JSON = {
    "lone surrogate": b'{"name": "\\ud800"}',
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "long number": b'{"name": ' + b"9" * 5000 + b"}",
}
DEADLINE_SECONDS, WRITE_SECONDS = 1, 2
PER_ADDRESS, TOTAL = 60, 200
ENVIRON = {
    "VEDETTE_HEADER_TIMEOUT_SECONDS": str(DEADLINE_SECONDS),
    "VEDETTE_BODY_TIMEOUT_SECONDS": str(DEADLINE_SECONDS),
    "VEDETTE_WRITE_TIMEOUT_SECONDS": str(WRITE_SECONDS),
    "VEDETTE_KEEP_ALIVE_SECONDS": "2",
    "VEDETTE_MAX_CONNECTIONS": str(TOTAL),
    "VEDETTE_MAX_CONNECTIONS_PER_ADDRESS": str(PER_ADDRESS),
    "VEDETTE_REQUESTS_PER_SECOND_PER_ADDRESS": "0",
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    deployment = make_deployment(tmp_path_factory.mktemp("target"))
    with serving(deployment, environ=ENVIRON) as process:
        hostile_target = Target(
            deployment, psutil.Process(process.pid), api_token(deployment, ALICE)
        )
        for tenant in ("acme", "globex"):
            body = {
                "token": deployment.enrollment_secret(tenant),
                "name": f"{tenant}-1",
                "inventory": INVENTORY,
            }
            answer = hostile_target.call("POST", "/agent/v1/enroll", json=body)
            assert answer.status_code == 201, answer.text
            hostile_target.agent_tokens[tenant] = answer.json()["agent_token"]
        yield hostile_target


@pytest.fixture(autouse=True)
def _closed_connections(target: Target) -> Iterator[None]:
    yield
    target.close_connections()


def test_enrollment_decompresses_nothing(target: Target) -> None:
    before = target.cpu_seconds()
    answer = target.call(
        "POST",
        "/agent/v1/enroll",
        data=EMPTY_MEMBERS,
        headers={"Content-Encoding": "gzip"},
    )
    assert answer.status_code == 415
    assert target.cpu_seconds() - before < 4


def test_only_a_valid_token_enrolls_with_a_large_body(target: Target) -> None:
    path, deployment = "/agent/v1/enroll", target.deployment
    assert target.call("POST", path, data=b"x" * 300_000).status_code == 413
    wrong = head("POST", path, Authorization="Bearer vde_wrong", Content_Length=2_000_000)
    assert target.connect(wrong).recv(12) == b"HTTP/1.1 401"

    links = [NVLinkInfo(link=link, is_active=True, remote="GPU-0") for link in range(MAX_NVLINKS)]
    gpus = [
        GPUInfo(index=index, uuid=f"GPU-{index}", model="H100", memory_bytes=1, nvlinks=links)
        for index in range(MAX_GPUS)
    ]
    request = EnrollRequest(
        token=deployment.enrollment_secret("acme"),
        name="large",
        inventory=Inventory(hostname="large", gpus=gpus),
    )
    assert len(msgspec.json.encode(request)) > 300_000
    portal = PortalConnection(AccessPoints([deployment.url]))
    appliance_id = portal.enroll(request).appliance_id
    portal.close()
    response = target.call("GET", f"/api/v1/appliances/{appliance_id}", token=target.api_token)
    assert response.json()["gpu_count"] == MAX_GPUS

    spent = head("POST", path, Authorization=f"Bearer {request.token}", Content_Length=2_000_000)
    assert target.connect(spent).recv(12) == b"HTTP/1.1 401"


def test_many_gzip_members_cost_little_and_delay_no_other_tenant(target: Target) -> None:
    before = target.cpu_seconds()
    answer = target.call(
        "POST",
        "/api/v2/write",
        token=target.agent_tokens["acme"],
        data=EMPTY_MEMBERS,
        headers={"Content-Encoding": "gzip"},
    )
    assert (answer.status_code, answer.json()["reason"]) == (400, "bad_gzip")
    assert target.cpu_seconds() - before < 4
    assert target.write("globex").status_code == 204


def test_wide_lines_cost_little_memory_and_delay_no_other_tenant(target: Target) -> None:
    """Each line of 6 kB has 900 fields that are new; the quota of fields stops them."""
    before = target.process.memory_info().rss
    answers = []
    for number in range(30):
        fields = ",".join(f"f{number}_{field}=1" for field in range(900))
        line = f"wide{number} {fields}".encode()
        token = target.agent_tokens["acme"]
        answers.append(target.call("POST", "/api/v2/write", token=token, data=line))
        assert target.write("globex").status_code == 204
    refused = [answer for answer in answers if answer.status_code != 204]
    assert refused
    assert {answer.status_code for answer in refused} == {400}
    assert "fields" in refused[-1].json()["message"]
    assert target.process.memory_info().rss - before < 400 * 2**20


def test_an_inventory_of_55000_gpus_is_rejected(target: Target) -> None:
    gpus = [{"index": number, "uuid": f"GPU-{number}"} for number in range(55_000)]
    answer = target.call(
        "POST",
        "/agent/v1/heartbeat",
        token=target.agent_tokens["acme"],
        json={"inventory": {"hostname": "dgx-1", "gpus": gpus}},
    )
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert target.answers()


def agent_posts(deployment: Deployment, folder: Path) -> list[str]:
    """Return the POST routes of the agent API that need a token in a header."""
    store = DuckDBStore(folder / "routes.duckdb")
    with open_database(deployment.settings) as (_engine, sessions):
        app = create_access_app(settings=deployment.settings, sessions=sessions, store=store)
    store.close()
    paths = [
        route.path.replace("{attempt_id}", "x")
        for route in app.routes
        if isinstance(route, Route) and "POST" in (route.methods or set())
    ]
    assert len(paths) > 5
    return [path for path in paths if path not in {"/agent/v1/enroll", "/query"}]


def test_credentials_are_checked_before_the_body(target: Target, tmp_path: Path) -> None:
    for path in agent_posts(target.deployment, tmp_path):
        with target.connect() as client:
            client.sendall(
                f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer vda_wrong\r\n"
                "Content-Length: 20000000\r\n\r\n".encode()
            )
            assert client.recv(100).startswith(b"HTTP/1.1 401"), path


@pytest.mark.parametrize("kind", HOSTILE_JSON)
@pytest.mark.parametrize(
    ("path", "sender"),
    [
        ("/api/v1/jobs", "alice"),
        ("/agent/v1/heartbeat", "acme"),
        ("/collectd", "acme"),
        ("/agent/v1/enroll", ""),
    ],
)
def test_hostile_json_is_400_that_says_where(
    target: Target, *, path: str, sender: str, kind: str
) -> None:
    tokens = {"alice": target.api_token, "": ""} | target.agent_tokens
    body = HOSTILE_JSON[kind]
    if path in {"/agent/v1/heartbeat", "/agent/v1/enroll"}:
        body = body.replace(b'"name"', b'"sent_at_ns"' if "heart" in path else b'"name"')
        body = body if body.startswith(b"{") else b'{"other": %b}' % body
    answer = target.call(
        "POST",
        path,
        token=tokens[sender],
        data=body,
        headers={"Content-Type": "application/json"},
    )
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_json"), answer.text
    assert "byte " in answer.json()["message"]


def test_bodies_that_drip_occupy_no_thread_and_end(target: Target) -> None:
    form = head(
        "POST",
        "/login",
        Content_Type="application/x-www-form-urlencoded",
        Content_Length=1000,
    )
    clients = [target.connect(form + b"email=") for _ in range(32)]
    assert target.answers()
    # The whole body would take 100 s.
    assert drip(clients, b"x", times=200) < 200
    # Bytes that arrive after the end may reset the connection before its response is read.
    assert {read_all(client)[:12] for client in clients} <= {b"HTTP/1.1 408", b""}
    assert target.answers()


def test_half_sent_headers_end(target: Target) -> None:
    clients = [target.connect(b"GET /login HTTP/1.1\r\nX-A: ") for _ in range(PER_ADDRESS - 1)]
    assert target.answers()
    assert {read_all(client)[:12] for client in clients} == {b"HTTP/1.1 408"}


def test_the_connections_of_an_address_are_bounded(target: Target) -> None:
    clients = [target.connect(head("GET", "/ping"), host=2) for _ in range(PER_ADDRESS)]
    assert {client.recv(12) for client in clients} == {b"HTTP/1.1 204"}
    assert read_all(target.connect(host=2)).startswith(b"HTTP/1.1 429")
    assert target.answers()


def test_silent_connections_make_room_when_all_are_in_use(target: Target) -> None:
    hosts = [3 + count // (PER_ADDRESS - 5) for count in range(TOTAL)]
    for host in hosts:
        target.connect(host=host)
    assert target.answers()


def test_idle_connections_end(target: Target) -> None:
    assert read_all(target.connect(head("GET", "/ping"))).startswith(b"HTTP/1.1 204")


def test_clients_that_do_not_read_occupy_no_thread_and_end(target: Target) -> None:
    # The kernel buffers less.
    pages = head("GET", "/static/vendor/swagger-ui/swagger-ui-bundle.js") * 8
    clients = [target.connect(pages) for _ in range(24)]
    assert target.answers()
    assert target.connections() >= len(clients)
    assert target.answers()
    eventually(
        lambda: target.connections() == 0,
        within_seconds=WRITE_SECONDS + 30,
        what="the connections to be closed",
    )
    assert max(len(read_all(client)) for client in clients) < 8 * 1_700_000


def test_a_slow_but_steady_reader_gets_everything(target: Target) -> None:
    page = head("GET", "/static/vendor/swagger-ui/swagger-ui-bundle.js", Connection="close")
    with target.connect(page) as client:
        size, started = 0, time.monotonic()
        while data := client.recv(16384):
            size += len(data)
            if time.monotonic() - started < WRITE_SECONDS + 1:
                time.sleep(0.02)
    assert size > 1_700_000


def test_the_rest_of_a_refused_body_is_not_read_for_long(target: Target) -> None:
    client = target.connect(head("POST", "/login", Content_Length=100_000_000))
    assert client.recv(12) == b"HTTP/1.1 413"
    assert drip([client], b"x" * 100, times=400) < 400


@pytest.mark.parametrize(
    ("size", "is_signed_in", "status"),
    [(100_000, False, 413), (100_000, True, 422), (5_000_000, True, 413), (10_000, False, 401)],
)
@pytest.mark.parametrize("is_chunked", [False, True])
def test_only_signed_in_users_send_large_bodies(
    target: Target, *, size: int, is_signed_in: bool, status: int, is_chunked: bool
) -> None:
    body = b'{"name": "%b"}' % (b"x" * size)
    answer = target.call(
        "POST",
        "/api/v1/jobs",
        token=target.api_token if is_signed_in else "",
        data=iter([body]) if is_chunked else body,
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code == status
    assert answer.json()["status"] == status
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_endless_headers_are_rejected(target: Target) -> None:
    client = target.connect(head("GET", "/ping")[:-2])
    assert is_cut_off(client, b"X-A: %b\r\n" % (b"a" * 1000), times=1000)


def test_endless_trailers_and_tiny_chunks_are_rejected(target: Target) -> None:
    start = head("POST", "/login", Transfer_Encoding="chunked") + b"1\r\nx\r\n0\r\n"
    client = target.connect(start)
    assert is_cut_off(client, b"X-A: %b\r\n" % (b"a" * 1000), times=1000)


def test_a_flood_of_pipelined_requests_is_rejected(target: Target) -> None:
    client = target.connect(head("GET", "/ping") * 1000)
    assert read_all(client).count(b"HTTP/1.1 204") < 100
    # The requests that are still served don't fill the log.
    for _ in range(20):
        target.connect(head("GET", "/static/vendor/swagger-ui/swagger-ui-bundle.js") * 1000)
    assert target.answers()
    log = target.deployment.log("server")
    assert "Exception in ASGI application" not in log
    assert log.count("Invalid HTTP request") < 5


def test_a_long_poll_outlasts_all_deadlines(target: Target) -> None:
    token = target.agent_tokens["acme"]
    state = target.call("GET", "/agent/v1/desired", token=token).json()
    started = time.monotonic()
    path = f"/agent/v1/desired?generation={state['generation']}&wait_seconds=4"
    assert target.call("GET", path, token=token).status_code == 204
    assert time.monotonic() - started > 3.5


def test_a_proxy_that_is_not_trusted_is_reported_once(target: Target) -> None:
    for _ in range(3):
        assert target.call("GET", "/ping", headers={"X-Forwarded-For": "192.0.2.1"}).ok
    log = (target.deployment.data_dir / "server.log").read_text()
    assert log.count("trusted_proxies = 127.0.0.1") == 1
