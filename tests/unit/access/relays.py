"""A relay as the tests of the agent API play it."""

import gzip
from dataclasses import dataclass, field
from typing import Any

import msgspec
import requests

from core.clock import to_ns
from core.db import SessionFactory
from protocol.relays import (
    TOKEN_HEADER,
    ChangesReply,
    RegistrySnapshot,
    RelayedOutcome,
    RelayedOutcomes,
    RelayedWrite,
    RelayedWrites,
)
from tenants.fleet.access_points import AccessPointKind, AccessPointRequest, create_access_point
from tenants.models import User
from tests.cast import NOON, scope_of

PUBLIC_URL = "https://portal.example"
NOON_NS = to_ns(NOON)


@dataclass(frozen=True, slots=True)
class RelayClient:
    """Asks the agent API as a relay does."""

    url: str
    access_point_id: str
    secret: str
    http: requests.Session = field(default_factory=requests.Session)

    def request(self, method: str, path: str, **details: Any) -> requests.Response:  # noqa: ANN401
        """Send a request with the relay's token."""
        headers = {TOKEN_HEADER: self.secret, **details.pop("headers", {})}
        return self.http.request(
            method, f"{self.url}{path}", headers=headers, timeout=60, **details
        )

    def send(self, *writes: RelayedWrite) -> list[RelayedOutcome]:
        """Send writes, compressed; return their outcomes."""
        body = gzip.compress(msgspec.msgpack.encode(RelayedWrites(writes=list(writes))))
        response = self.request(
            "POST", "/relay/v1/samples", data=body, headers={"Content-Encoding": "gzip"}
        )
        assert response.status_code == 200, response.text
        return msgspec.msgpack.decode(response.content, type=RelayedOutcomes).outcomes

    def registry(self, revision: str = "", wait_seconds: float = 0) -> RegistrySnapshot | None:
        """Return the snapshot if it is another one."""
        query = {"revision": revision, "wait_seconds": f"{wait_seconds}"}
        response = self.request("GET", "/relay/v1/registry", params=query)
        if response.status_code == 204:
            return None
        assert response.status_code == 200, response.text
        return msgspec.json.decode(response.content, type=RegistrySnapshot)

    def changes(self, generations: dict[str, int], wait_seconds: float = 0) -> list[str]:
        """Return the appliances that have changed."""
        body = {"generations": generations, "wait_seconds": wait_seconds}
        response = self.request("POST", "/relay/v1/changes", json=body)
        assert response.status_code == 200, response.text
        return msgspec.json.decode(response.content, type=ChangesReply).changed


def make_relay(
    sessions: SessionFactory, olivia: User, url: str, *, tenant_id: str | None = None
) -> RelayClient:
    """Return the client of a new relay."""
    name = f"relay {tenant_id or 'of all'}"
    wanted = AccessPointRequest(
        name=name,
        url=f"https://{name.replace(' ', '-')}.example",
        kind=AccessPointKind.RELAY,
        tenant_id=tenant_id,
    )
    with sessions.begin() as session:
        made = create_access_point(
            session, scope_of(olivia), wanted, public_url=PUBLIC_URL, now=NOON
        )
    return RelayClient(url, made.point.id, made.secret)


def write_of(appliance_id: str, body: str | bytes, **values: Any) -> RelayedWrite:  # noqa: ANN401
    """Return a write that a relay received at noon."""
    packed = body.encode() if isinstance(body, str) else body
    details = {"precision": "ns", "received_at_ns": NOON_NS, **values}
    return RelayedWrite(appliance_id=appliance_id, body=packed, **details)
