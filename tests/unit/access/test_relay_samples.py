"""Samples that a relay has received from agents: stored as if each had sent its own."""

from collections.abc import Mapping
from concurrent.futures import Future
from datetime import timedelta

import msgspec
import pytest

from core.clock import NS_PER_SECOND, to_ns
from core.db import SessionFactory
from core.errors import OverloadedError
from protocol.relays import MAX_WRITES, RelayedOutcome, RelayedWrites
from tenants.fleet.agents import block_appliance
from tenants.models import Appliance, LateSamples
from tests.cast import NOON, Cast, FrozenClock, make_appliance
from tests.unit.access.conftest import MAX_BODY_BYTES, AgentAPI
from tests.unit.access.relays import NOON_NS, RelayClient, make_relay, write_of
from timeseries.duckdb.store import DuckDBStore
from timeseries.points import Batch
from timeseries.store import Latest, LatestQuery, RejectedPoint, ScanQuery, Store

STORED = RelayedOutcome(status=204)


@pytest.fixture
def relay(api: AgentAPI, sessions: SessionFactory, cast: Cast) -> RelayClient:
    return make_relay(sessions, cast.olivia, api.url)


@pytest.fixture
def relay_of_globex(api: AgentAPI, sessions: SessionFactory, cast: Cast) -> RelayClient:
    return make_relay(sessions, cast.olivia, api.url, tenant_id=cast.globex.id)


@pytest.fixture
def stranger(sessions: SessionFactory, cast: Cast) -> Appliance:
    with sessions.begin() as session:
        return make_appliance(session, cast.globex, "stranger")


def latest(store: Store, field: str = "usage_percent") -> dict[str, Latest]:
    rows = store.latest(
        LatestQuery(
            measurement="cpu",
            fields=(field,),
            since_ns=0,
            tenants=None,
            group_by=("tenant", "appliance"),
        )
    )
    return {row.tags["appliance"]: row for row in rows}


def error_in(outcome: RelayedOutcome) -> dict[str, object]:
    decoded: dict[str, object] = msgspec.json.decode(outcome.body)
    return decoded


def test_each_write_gets_the_identity_of_its_agent(
    relay: RelayClient, store: Store, dgx: Appliance, stranger: Appliance
) -> None:
    line = f"cpu,tenant=other,appliance=other usage_percent=1 {NOON_NS}"
    assert relay.send(write_of(dgx.id, line), write_of(stranger.id, line)) == [STORED, STORED]
    assert {ident: row.tags["tenant"] for ident, row in latest(store).items()} == {
        dgx.id: dgx.tenant_id,
        stranger.id: stranger.tenant_id,
    }


def test_a_bad_write_fails_none_of_the_others(
    relay: RelayClient, store: Store, dgx: Appliance
) -> None:
    good, bad = f"cpu usage_percent=1 {NOON_NS}\n", f"cpu usage_percent= {NOON_NS}\n"
    outcomes = relay.send(
        write_of(dgx.id, good),
        write_of(dgx.id, good + bad),
        write_of(dgx.id, good),
        write_of("nobody", good),
        write_of(dgx.id, b"\xff\xfe"),
        write_of(dgx.id, good, precision="fortnight"),
        write_of(dgx.id, good, received_at_ns=-1, precision="s"),
        write_of(dgx.id, f"cpu usage_percent=7 {NOON_NS + 1}\n"),
    )
    assert [outcome.status for outcome in outcomes] == [204, 400, 204, 401, 400, 400, 400, 204]
    errors = error_in(outcomes[1])
    assert (errors["line"], errors["code"]) == (2, "invalid")
    assert str(errors["message"]).startswith("1 of 2 lines was not stored: line 2: ")
    assert latest(store)[dgx.id].values == {"usage_percent": 7.0}


def test_a_write_above_the_limit_of_bodies_is_refused_alone(
    relay: RelayClient, dgx: Appliance
) -> None:
    long = b"#" * (MAX_BODY_BYTES + 1)
    line = f"cpu usage_percent=1 {NOON_NS}"
    assert [o.status for o in relay.send(write_of(dgx.id, long), write_of(dgx.id, line))] == [
        413,
        204,
    ]


def test_a_line_without_a_time_gets_that_of_its_arrival_at_the_relay(
    relay: RelayClient, store: Store, dgx: Appliance
) -> None:
    early = NOON_NS - 3600 * NS_PER_SECOND
    relay.send(
        write_of(dgx.id, "cpu usage_percent=1", received_at_ns=early),
        write_of(dgx.id, "cpu usage_percent=2", received_at_ns=early + NS_PER_SECOND),
    )
    row = latest(store)[dgx.id]
    assert (row.time_ns, row.values) == (early + NS_PER_SECOND, {"usage_percent": 2.0})


def test_writes_of_an_appliance_are_stored_in_their_order(
    relay: RelayClient, store: Store, dgx: Appliance
) -> None:
    # The last value of one time stays, whether writes are joined or not.
    texts = [f"cpu usage_percent={number} {NOON_NS}\n" for number in range(40)]
    texts[20] = f'cpu usage_percent=20,note="not joined" {NOON_NS}\n'
    assert relay.send(*(write_of(dgx.id, text) for text in texts)) == [STORED] * 40
    assert latest(store)[dgx.id].values == {"usage_percent": 39.0}


def test_what_is_sent_twice_is_stored_once(
    relay: RelayClient, store: Store, dgx: Appliance
) -> None:
    write = write_of(dgx.id, f"cpu usage_percent=1 {NOON_NS}")
    assert relay.send(write) == relay.send(write) == [STORED]
    query = ScanQuery(measurement="cpu", start_ns=0, end_ns=NOON_NS + 1, tenants=None)
    assert sum(len(batch) for batch in store.scan(query)) == 1


def test_late_samples_are_noted_for_the_rules(
    relay: RelayClient, sessions: SessionFactory, dgx: Appliance
) -> None:
    late = to_ns(NOON - timedelta(minutes=40))
    relay.send(write_of(dgx.id, f"cpu usage_percent=1 {late}"))
    with sessions() as session:
        assert [note.appliance_id for note in session.query(LateSamples)] == [dgx.id]


def test_a_blocked_appliance_is_refused(
    relay: RelayClient, sessions: SessionFactory, clock: FrozenClock, dgx: Appliance
) -> None:
    write = write_of(dgx.id, f"cpu usage_percent=1 {NOON_NS}")
    assert relay.send(write) == [STORED]
    with sessions.begin() as session:
        session.get_one(Appliance, dgx.id).revoked_at = clock()
        block_appliance(session, appliance_id=dgx.id)
    clock.advance(1)
    [outcome] = relay.send(write)
    assert (outcome.status, error_in(outcome)["code"]) == (401, "unauthorized")


def test_an_appliance_that_enrolled_a_moment_ago_is_admitted(
    relay: RelayClient, sessions: SessionFactory, cast: Cast, dgx: Appliance
) -> None:
    line = f"cpu usage_percent=1 {NOON_NS}"
    relay.send(write_of(dgx.id, line))
    with sessions.begin() as session:
        new = make_appliance(session, cast.acme, "new")
    assert relay.send(write_of(new.id, line)) == [STORED]


def test_the_relay_of_a_tenant_acts_for_its_appliances_only(
    relay_of_globex: RelayClient, store: Store, dgx: Appliance, stranger: Appliance
) -> None:
    relay = relay_of_globex
    line = f"cpu usage_percent=1 {NOON_NS}"
    outcomes = relay.send(write_of(dgx.id, line), write_of(stranger.id, line))
    assert [outcome.status for outcome in outcomes] == [401, 204]
    assert list(latest(store)) == [stranger.id]


class BusyStore(DuckDBStore):
    """Is busy for every second batch that it gets."""

    submitted = 0

    def submit(self, batch: Batch, *, identity: Mapping[str, str]) -> Future[list[RejectedPoint]]:
        self.submitted += 1
        if self.submitted % 2 == 0:
            raise OverloadedError("The queue is full.", retry_after_seconds=7)
        return super().submit(batch, identity=identity)


@pytest.mark.parametrize("store", [BusyStore], indirect=True)
def test_nothing_of_an_appliance_is_stored_before_what_must_be_sent_again(
    relay: RelayClient, store: Store, dgx: Appliance
) -> None:
    # Strings are not joined: each is a write of its own.
    writes = [
        write_of(dgx.id, f'cpu usage_percent={number},note="x" {NOON_NS}') for number in range(4)
    ]
    outcomes = relay.send(*writes)
    assert [outcome.status for outcome in outcomes] == [204, 429, 429, 429]
    assert {outcome.retry_after_seconds for outcome in outcomes[1:]} == {7}
    assert latest(store)[dgx.id].values == {"usage_percent": 0.0}


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x81\xa6writes\x01", b"\x91" * 5000, b"{}"])
def test_garbage_is_a_bad_request(relay: RelayClient, body: bytes) -> None:
    response = relay.request("POST", "/relay/v1/samples", data=body)
    assert (response.status_code, response.json()["code"]) == (400, "invalid")


def test_more_writes_than_the_contract_allows_are_refused(
    relay: RelayClient, dgx: Appliance
) -> None:
    writes = [write_of(dgx.id, b"")] * (MAX_WRITES + 1)
    body = msgspec.msgpack.encode(RelayedWrites(writes=writes))
    assert relay.request("POST", "/relay/v1/samples", data=body).status_code == 400
    assert relay.send(*writes[:-1]) == [STORED] * MAX_WRITES
    assert relay.send() == []


def test_a_body_above_the_limit_is_refused(relay: RelayClient) -> None:
    response = relay.request("POST", "/relay/v1/samples", data=bytes(33 * 1024 * 1024))
    assert response.status_code == 413
