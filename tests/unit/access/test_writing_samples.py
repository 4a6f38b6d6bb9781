"""POST /api/v2/write: good lines are durable at 204, bad ones are named, identity is stamped."""

import gzip
import zlib
from collections.abc import Mapping
from concurrent.futures import Future

import pytest
from influxdb_client.client.exceptions import InfluxDBError
from influxdb_client.client.influxdb_client import InfluxDBClient
from influxdb_client.client.write_api import SYNCHRONOUS
from influxdb_client.rest import ApiException
from sqlalchemy import select

from core.clock import NS_PER_SECOND, to_ns
from core.db import SessionFactory
from core.errors import OverloadedError
from tenants.fleet.events import EventKind
from tenants.models import Appliance, ApplianceEvent
from tests.cast import NOON, Cast, FrozenClock
from tests.fixtures.polling import eventually
from tests.unit.access.conftest import MAX_BODY_BYTES, SECRET, AgentAPI
from timeseries.duckdb.store import DuckDBStore
from timeseries.points import Batch
from timeseries.store import Latest, LatestQuery, RejectedPoint, Store, StoreUnavailableError

NOON_NS = to_ns(NOON)
DAY_NS = 24 * 3600 * NS_PER_SECOND


def latest(store: Store, measurement: str = "cpu", field: str = "usage_percent") -> list[Latest]:
    return store.latest(
        LatestQuery(
            measurement=measurement,
            fields=(field,),
            since_ns=0,
            tenants=None,
            group_by=("tenant", "appliance"),
        )
    )


def test_a_sample_is_stored_with_its_tenant_and_appliance(
    api: AgentAPI, store: Store, dgx: Appliance
) -> None:
    response = api.write(f"cpu usage_percent=12.5 {NOON_NS}")
    assert (response.status_code, response.content) == (204, b"")
    assert latest(store) == [
        Latest({"tenant": dgx.tenant_id, "appliance": dgx.id}, NOON_NS, {"usage_percent": 12.5})
    ]


def test_a_sender_can_not_choose_its_identity(
    api: AgentAPI, store: Store, dgx: Appliance, cast: Cast
) -> None:
    line = f"cpu,tenant={cast.globex.id},appliance=other usage_percent=1"
    assert api.write(line).status_code == 204
    [row] = latest(store)
    assert row.tags == {"tenant": dgx.tenant_id, "appliance": dgx.id}


def test_a_line_without_a_time_takes_the_portals(api: AgentAPI, store: Store) -> None:
    api.write("cpu usage_percent=1")
    assert latest(store)[0].time_ns == NOON_NS


@pytest.mark.parametrize(
    ("precision", "units"), [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", NS_PER_SECOND)]
)
def test_times_are_read_in_the_precision_asked_for(
    api: AgentAPI, store: Store, precision: str, units: int
) -> None:
    line = f"cpu usage_percent=1 {NOON_NS // units}"
    assert api.write(line, params={"precision": precision}).status_code == 204
    assert latest(store)[0].time_ns == NOON_NS


def test_an_unknown_precision_is_refused_with_the_known_ones(api: AgentAPI) -> None:
    response = api.write("cpu usage_percent=1 1", params={"precision": "fortnight"})
    assert response.status_code == 400
    assert "'fortnight'" in response.json()["message"]
    assert "ns, us, ms, s" in response.json()["message"]


def test_good_lines_are_stored_and_the_bad_one_is_reported(api: AgentAPI, store: Store) -> None:
    response = api.write(b"cpu usage_percent=1\n\ncpu usage_percent=\nload load1=0.5\n")
    assert response.status_code == 400
    body = response.json()
    assert (body["code"], body["status"], body["line"]) == ("invalid", 400, 3)
    assert body["message"].startswith("1 of 3 lines was not stored: line 3: ")
    assert [error["line"] for error in body["errors"]] == [3]
    assert latest(store)[0].values == {"usage_percent": 1.0}
    assert latest(store, "load", "load1")[0].values == {"load1": 0.5}


def test_a_body_of_bad_lines_only_names_some_and_counts_the_rest(api: AgentAPI) -> None:
    body = api.write(b"bad\n" * 8).json()
    assert body["message"].startswith("8 of 8 lines were not stored: line 1: ")
    assert body["message"].endswith("and 3 more")
    assert [error["line"] for error in body["errors"]] == list(range(1, 9))


def test_a_type_conflict_is_named_by_its_line_behind_comments_and_strings(
    api: AgentAPI, store: Store
) -> None:
    assert api.write("cpu usage_percent=1").status_code == 204
    lines = '# a comment\nnote text="two\nlines"\n\nbad\r\ncpu usage_percent="high"\nload load1=2\n'
    body = api.write(lines).json()
    assert [error["line"] for error in body["errors"]] == [5, 6]
    assert "usage_percent" in body["errors"][1]["reason"]
    assert latest(store, "load", "load1")[0].values == {"load1": 2.0}


def test_a_sample_from_the_far_future_is_refused(api: AgentAPI, store: Store) -> None:
    soon, far = NOON_NS + 3599 * NS_PER_SECOND, NOON_NS + 3601 * NS_PER_SECOND
    body = api.write(f"cpu usage_percent=1 {soon}\ncpu usage_percent=2 {far}").json()
    assert body["line"] == 2
    assert "1:00:01 ahead of the portal's clock" in body["errors"][0]["reason"]
    assert latest(store)[0].values == {"usage_percent": 1.0}


def test_rejected_samples_are_an_event_of_the_appliance_once_an_hour(
    api: AgentAPI, sessions: SessionFactory, clock: FrozenClock
) -> None:
    line = f"cpu usage_percent=2 {NOON_NS + 10 * 3600 * NS_PER_SECOND}\n"
    for seconds in (0, 60, 60, 3600):
        clock.advance(seconds)
        assert api.write(line * 2).status_code == 400

    def messages() -> list[str]:
        with sessions() as session:
            kind = EventKind.SAMPLES_REJECTED.value
            rejections = select(ApplianceEvent).where(ApplianceEvent.kind == kind)
            return [
                event.message for event in session.scalars(rejections.order_by(ApplianceEvent.at))
            ]

    assert eventually(lambda: len(messages()) == 2)
    first, second = messages()
    assert first.startswith("2 samples were rejected: its time is 10:00:00 ahead of the portal's")
    assert second.startswith("6 samples were rejected: its time is ")


def test_a_sample_of_last_week_is_taken(api: AgentAPI, store: Store) -> None:
    week_ago = NOON_NS - 7 * DAY_NS
    assert api.write(f"cpu usage_percent=1 {week_ago}").status_code == 204
    assert latest(store)[0].time_ns == week_ago


def test_a_sample_from_the_far_past_is_refused(api: AgentAPI, store: Store) -> None:
    edge = NOON_NS - 14 * DAY_NS
    body = api.write(f"cpu usage_percent=1 {edge}\ncpu usage_percent=2 {edge - 1}").json()
    assert [error["line"] for error in body["errors"]] == [2]
    reason = body["errors"][0]["reason"]
    assert "14 days, 0:00:00 ago" in reason
    assert "retention of 14 days" in reason
    assert latest(store)[0].values == {"usage_percent": 1.0}


def test_seconds_that_were_sent_as_nanoseconds_are_refused_with_a_hint(api: AgentAPI) -> None:
    body = api.write(f"cpu usage_percent=1 {NOON_NS // NS_PER_SECOND}").json()
    assert "the precision, which was read as ns" in body["message"]


@pytest.mark.parametrize("params", [{}, {"bucket": "any", "org": "any"}, {"orgID": "0f"}])
def test_any_bucket_and_organization_will_do(api: AgentAPI, params: dict[str, str]) -> None:
    assert api.write("cpu usage_percent=1", params=params).status_code == 204


def test_an_identity_encoding_is_no_encoding(api: AgentAPI) -> None:
    response = api.write("cpu usage_percent=1", headers={"Content-Encoding": "identity"})
    assert response.status_code == 204


def test_gzip_is_unpacked(api: AgentAPI, store: Store) -> None:
    packed = gzip.compress(b"cpu usage_percent=1\n") + gzip.compress(b"load load1=2\n")
    assert api.write(packed, headers={"Content-Encoding": "gzip"}).status_code == 204
    assert latest(store) != []
    assert latest(store, "load", "load1") != []


@pytest.mark.parametrize(
    "body",
    [b"not gzip", gzip.compress(b"cpu usage_percent=1")[:-9], zlib.compress(b"cpu a=1")],
    ids=["text", "cut", "zlib"],
)
def test_what_is_not_gzip_is_refused(api: AgentAPI, body: bytes) -> None:
    response = api.write(body, headers={"Content-Encoding": "gzip"})
    assert (response.status_code, response.json()["reason"]) == (400, "bad_gzip")


def test_another_encoding_is_refused(api: AgentAPI) -> None:
    response = api.write(b"x", headers={"Content-Encoding": "br"})
    assert response.status_code == 415


def test_a_body_over_the_limit_is_413(api: AgentAPI) -> None:
    assert api.write(b"x" * (MAX_BODY_BYTES + 1)).status_code == 413


def test_a_chunked_body_over_the_limit_is_413(api: AgentAPI) -> None:
    response = api.write(b"x" * 50_000 for _ in range(10))  # type: ignore[arg-type]
    assert response.status_code == 413


def test_a_gzip_bomb_is_413(api: AgentAPI) -> None:
    bomb = gzip.compress(b"\n" * 100_000_000)
    assert len(bomb) < MAX_BODY_BYTES
    response = api.write(bomb, headers={"Content-Encoding": "gzip"})
    assert (response.status_code, response.json()["code"]) == (413, "request too large")


def test_a_large_body_goes_through(api: AgentAPI, store: Store) -> None:
    lines = "".join(f"cpu usage_percent={n} {NOON_NS + n}\n" for n in range(4000))
    assert len(lines) > 100_000
    assert api.write(lines).status_code == 204
    assert latest(store)[0].values == {"usage_percent": 3999.0}


def test_an_empty_body_is_fine(api: AgentAPI) -> None:
    assert api.write(b"").status_code == 204


def test_the_influx_client_can_push(api: AgentAPI, store: Store) -> None:
    with (
        InfluxDBClient(url=api.url, token=SECRET, org="-", enable_gzip=True) as client,
        client.write_api(write_options=SYNCHRONOUS) as writer,
    ):
        writer.write(bucket="-", record=f"cpu usage_percent=7.5 {NOON_NS}")
    assert latest(store)[0].values == {"usage_percent": 7.5}


def test_the_influx_client_shows_which_line_was_bad(api: AgentAPI) -> None:
    with (
        InfluxDBClient(url=api.url, token=SECRET, org="-") as client,
        client.write_api(write_options=SYNCHRONOUS) as writer,
        pytest.raises((ApiException, InfluxDBError), match="line 1: "),
    ):
        writer.write(bucket="-", record="cpu usage_percent=")


class _OverloadedStore(DuckDBStore):
    """A store whose queue is always full."""

    def submit(
        self,
        batch: Batch,  # noqa: ARG002
        *,
        identity: Mapping[str, str],  # noqa: ARG002
    ) -> Future[list[RejectedPoint]]:
        raise OverloadedError("Too many points wait.", retry_after_seconds=7)


class _AbsentStore(DuckDBStore):
    """A store whose disk fails at the commit."""

    def submit(
        self,
        batch: Batch,  # noqa: ARG002
        *,
        identity: Mapping[str, str],  # noqa: ARG002
    ) -> Future[list[RejectedPoint]]:
        future: Future[list[RejectedPoint]] = Future()
        future.set_exception(StoreUnavailableError("The store does not answer."))
        return future


@pytest.mark.parametrize(
    ("store", "status", "code", "retry_after"),
    [(_OverloadedStore, 429, "overloaded", "7"), (_AbsentStore, 503, "store_unavailable", "5")],
    indirect=["store"],
)
def test_a_store_that_can_not_take_it_asks_to_try_again(
    api: AgentAPI, *, status: int, code: str, retry_after: str
) -> None:
    response = api.write("cpu usage_percent=1")
    assert (response.status_code, response.json()["reason"]) == (status, code)
    assert response.headers["Retry-After"] == retry_after


@pytest.mark.parametrize("path", ["/api/v2/write", "/write"])
def test_a_byte_order_mark_is_no_part_of_the_first_line(
    api: AgentAPI, store: Store, path: str
) -> None:
    body = b"\xef\xbb\xbf" + f"cpu usage_percent=12.5 {NOON_NS}".encode()
    assert api.request("POST", path, data=body).status_code == 204
    assert store.measurements(tenants=None) == ["cpu"]
