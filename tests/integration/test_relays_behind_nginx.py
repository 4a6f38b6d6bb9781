"""What a relay sends reaches a portal behind the shipped nginx, which asks for certificates."""

from collections.abc import Iterator
from urllib.parse import quote

import msgspec
import pytest
import requests

from cli.database import open_database
from core.clock import to_ns, utc_now
from core.db import transaction
from protocol.relays import (
    ADDRESS_HEADER,
    CERTIFICATE_HEADER,
    MAX_SAMPLES_BYTES,
    TOKEN_HEADER,
    RelayedOutcome,
    RelayedOutcomes,
    RelayedWrite,
    RelayedWrites,
)
from tenants.fleet.access_points import AccessPointKind, AccessPointRequest, create_access_point
from tenants.models import Role
from tenants.scope import Scope
from tests.integration.test_agent_certificates import Gateway, Host, dgx, gateway

__all__ = ["dgx", "gateway"]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def relay(gateway: Gateway) -> Iterator[requests.Session]:
    """What a relay connects with."""
    operator = Scope(user_id="", role=Role.OPERATOR, tenant_id=None)
    wanted = AccessPointRequest(name="hall", url="https://hall.example", kind=AccessPointKind.RELAY)
    with (
        open_database(gateway.deployment.settings) as (_engine, sessions),
        transaction(sessions) as session,
    ):
        made = create_access_point(session, operator, wanted, public_url=gateway.url, now=utc_now())
    with requests.Session() as http:
        http.headers[TOKEN_HEADER] = made.secret
        http.trust_env = False
        http.verify = str(gateway.authority.certificate)
        yield http


def test_the_certificate_of_an_agent_arrives(
    relay: requests.Session, dgx: Host, gateway: Gateway
) -> None:
    text = dgx.certificate.read_text()
    begin = text.index("-----BEGIN CERTIFICATE-----")
    certificate = quote(text[begin:], safe="")
    headers = {ADDRESS_HEADER: "203.0.113.7", CERTIFICATE_HEADER: certificate}
    path = f"{gateway.url}/api/v2/write"
    passed = relay.post(path, headers=headers, timeout=60)
    assert passed.status_code == 204, passed.text
    del headers[CERTIFICATE_HEADER]
    headers["Authorization"] = f"Bearer {dgx.secret}"
    refused = relay.post(path, headers=headers, timeout=60)
    assert refused.json()["reason"] == "certificate_needed"


def test_a_request_with_samples_may_be_as_large_as_the_portal_takes(
    relay: requests.Session, dgx: Host, gateway: Gateway
) -> None:
    comment = b"#" * 1_000_000
    now = to_ns(utc_now())
    body = comment + f"\ncpu usage_percent=1 {now}".encode()
    write = RelayedWrite(appliance_id=dgx.ident, precision="ns", body=body, received_at_ns=now)
    count = MAX_SAMPLES_BYTES // len(msgspec.msgpack.encode(write))
    packed = msgspec.msgpack.encode(RelayedWrites(writes=[write] * count))
    assert len(packed) > 31_000_000
    answer = relay.post(f"{gateway.url}/relay/v1/samples", data=packed, timeout=60)
    assert answer.status_code == 200, answer.text
    outcomes = msgspec.msgpack.decode(answer.content, type=RelayedOutcomes).outcomes
    assert outcomes == [RelayedOutcome(status=204)] * count
