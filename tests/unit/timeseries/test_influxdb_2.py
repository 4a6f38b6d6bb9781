"""Requests to InfluxDB 2 or later, recorded by a fake that answers as its API describes."""

import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from core.errors import OverloadedError
from timeseries.influxdb.store import InfluxDBStore
from timeseries.points import Point
from timeseries.store import StoreUnavailableError, write

ACME = {"tenant": "acme", "appliance": "a1"}
POINTS = [Point("gpu", {}, {"power_watts": float(i)}, 1_700_000_000 * 10**9 + i) for i in range(4)]


class StandIn(ThreadingHTTPServer):
    """An InfluxDB of some version that holds nothing and answers writes as it is told."""

    def __init__(self, version: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.version = version
        self.rejected: dict[bytes, tuple[int, str]] = {}
        self.buckets = ["samples", "samples.tenant-acme"]
        self.notes: list[tuple[str, dict[str, list[str]], dict[str, str], bytes]] = []

    @property
    def url(self) -> str:
        return f"influxdb://127.0.0.1:{self.server_port}/?org=vedette&bucket=samples&token=t0k3n"

    def noted(self, path: str) -> list[tuple[dict[str, list[str]], dict[str, str], bytes]]:
        """Return query, headers and body of the requests to a path."""
        return [(query, headers, body) for at, query, headers, body in self.notes if at == path]


class _Handler(BaseHTTPRequestHandler):
    server: StandIn
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        if address.path != "/api/v2/buckets":
            self._answer(204)
            return
        (name,) = parse_qs(address.query)["name"]
        buckets = [self._bucket(name)] if name in self.server.buckets else []
        self._answer(200, json.dumps({"buckets": buckets}).encode())

    def do_DELETE(self) -> None:
        self.server.notes.append((self.path, {}, {}, b""))
        self._answer(204)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        address = urlsplit(self.path)
        self.server.notes.append(
            (address.path, parse_qs(address.query), dict(self.headers.items()), body)
        )
        if address.path == "/query":
            self._answer(200, self._results(body))
            return
        for part, (status, reason) in self.server.rejected.items():
            if part in body:
                self._answer(status, json.dumps({"code": "x", "message": reason}).encode())
                return
        bucket = parse_qs(address.query).get("bucket", [""])[0]
        if address.path == "/api/v2/write" and bucket not in self.server.buckets:
            reason = f'bucket "{bucket}" not found'
            self._answer(404, json.dumps({"code": "not found", "message": reason}).encode())
            return
        if address.path == "/api/v2/buckets":
            self.server.buckets.append(json.loads(body)["name"])
        self._answer(204)

    def _bucket(self, name: str) -> dict[str, object]:
        rules = [{"type": "expire", "everySeconds": 1209600}]
        return {"id": f"id-{name}", "orgID": "o1", "name": name, "retentionRules": rules}

    def _results(self, body: bytes) -> bytes:
        series = []
        if parse_qs(body.decode())["q"] == ["SHOW DATABASES"]:
            rows = [[name] for name in self.server.buckets]
            series = [{"name": "databases", "columns": ["name"], "values": rows}]
        return json.dumps({"results": [{"statement_id": 0, "series": series}]}).encode() + b"\n"

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("X-Influxdb-Version", self.server.version)
        if status == 429:
            self.send_header("Retry-After", "11")
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Say nothing."""


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[StandIn]:
    """A stand-in of version 2.7, or of the test's."""
    with StandIn(getattr(request, "param", "v2.7.1")) as standing:
        thread = threading.Thread(target=standing.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield standing
        standing.shutdown()
        thread.join()


@pytest.fixture
def store(server: StandIn) -> Iterator[InfluxDBStore]:
    """A store on the stand-in."""
    opened = InfluxDBStore.from_url(server.url)
    yield opened
    opened.close()


@pytest.mark.parametrize("server", ["v2.7.1", "3.1.0", "1.8.10"], indirect=True)
def test_lines_go_to_the_bucket_compressed_and_with_the_token(
    store: InfluxDBStore, server: StandIn
) -> None:
    assert write(store, POINTS[:1], identity=ACME) == []

    ((query, headers, body),) = server.noted("/api/v2/write")
    bucket = "samples" if server.version.startswith("3") else "samples.tenant-acme"
    assert query == {"org": ["vedette"], "bucket": [bucket], "precision": ["ns"]}
    assert headers["Authorization"] == "Token t0k3n"
    assert headers["Content-Encoding"] == "gzip"
    assert body == b"gpu,appliance=a1,tenant=acme power_watts=0.0 1700000000000000000\n"


def test_reads_ask_for_the_bucket_as_a_database(store: InfluxDBStore, server: StandIn) -> None:
    assert store.measurements(tenants=("acme",)) == []

    listed, (_, headers, body) = server.noted("/query")
    assert parse_qs(listed[2].decode())["q"] == ["SHOW DATABASES"]
    asked = parse_qs(body.decode())
    assert asked["db"] == ["samples"]
    assert asked["q"] == ['SHOW FIELD KEYS; SHOW FIELD KEYS ON "samples.tenant-acme"']
    assert headers["Authorization"] == "Token t0k3n"


def test_a_new_tenant_gets_a_bucket_with_the_retention_of_the_named_one(
    store: InfluxDBStore, server: StandIn
) -> None:
    assert write(store, POINTS, identity={**ACME, "tenant": "globex"}) == []

    ((_, headers, body),) = server.noted("/api/v2/buckets")
    assert json.loads(body) == {
        "orgID": "o1",
        "name": "samples.tenant-globex",
        "description": "Samples of one tenant of Vedette",
        "retentionRules": [{"type": "expire", "everySeconds": 1209600}],
    }
    assert headers["Authorization"] == "Token t0k3n"
    assert len(server.noted("/api/v2/write")) == 2


def test_a_token_of_one_bucket_goes_on_in_it(store: InfluxDBStore, server: StandIn) -> None:
    server.rejected[b"orgID"] = (403, "insufficient permissions: unauthorized access")

    for _ in range(2):
        assert write(store, POINTS, identity={**ACME, "tenant": "globex"}) == []

    buckets = [query["bucket"] for query, _, _ in server.noted("/api/v2/write")]
    assert buckets == [["samples.tenant-globex"], ["samples"], ["samples"]]


def test_the_line_that_fails_a_whole_batch_is_found(store: InfluxDBStore, server: StandIn) -> None:
    server.rejected[b"power_watts=2.0"] = (400, "unable to parse: it is not liked")

    (rejected,) = write(store, POINTS, identity=ACME)

    assert rejected.position == 2
    assert "it is not liked" in rejected.reason
    written = server.noted("/api/v2/write")[1:]
    assert sorted(body.count(b"\n") for _, _, body in written) == [1, 1, 2, 2, 4]


def test_too_many_requests_are_passed_on(store: InfluxDBStore, server: StandIn) -> None:
    server.rejected[b"gpu"] = (429, "write limit reached")

    with pytest.raises(OverloadedError, match="write limit reached") as told:
        write(store, POINTS, identity=ACME)

    assert told.value.retry_after_seconds == 11


def test_a_rejected_token_is_reported(store: InfluxDBStore, server: StandIn) -> None:
    server.rejected[b"gpu"] = (401, "unauthorized access")

    with pytest.raises(StoreUnavailableError, match="denied the token access"):
        write(store, POINTS, identity=ACME)


def test_a_tenant_is_deleted_with_its_bucket(store: InfluxDBStore, server: StandIn) -> None:
    store.delete_tenant("acme")

    assert server.noted("/api/v2/buckets/id-samples.tenant-acme")


def test_a_tenant_is_deleted_by_predicate_from_the_named_bucket(
    store: InfluxDBStore, server: StandIn
) -> None:
    store.delete_tenant('ac"me')

    ((query, _, body),) = server.noted("/api/v2/delete")
    assert query == {"org": ["vedette"], "bucket": ["samples"]}
    assert json.loads(body) == {
        "start": "1677-09-21T00:12:43.145224194Z",
        "stop": "2262-04-11T23:47:16.854775806Z",
        "predicate": 'tenant="ac\\"me"',
    }


def test_retention_deletes_up_to_the_instant(store: InfluxDBStore, server: StandIn) -> None:
    store.delete_before(1_700_000_000 * 10**9)

    (query, _, body), (own, *_) = server.noted("/api/v2/delete")
    assert (query["bucket"], own["bucket"]) == (["samples"], ["samples.tenant-acme"])
    assert json.loads(body) == {
        "start": "1677-09-21T00:12:43.145224194Z",
        "stop": "2023-11-14T22:13:19.999999999Z",
    }


@pytest.mark.parametrize("server", ["3.1.0"], indirect=True)
def test_a_server_that_cannot_delete_reports_it(store: InfluxDBStore) -> None:
    with pytest.raises(StoreUnavailableError, match="can't delete samples"):
        store.delete_tenant("acme")


@pytest.mark.parametrize("server", ["unknown"], indirect=True)
def test_a_server_without_a_version_header_is_reported(store: InfluxDBStore) -> None:
    with pytest.raises(StoreUnavailableError, match="does not identify as InfluxDB"):
        write(store, POINTS, identity=ACME)
