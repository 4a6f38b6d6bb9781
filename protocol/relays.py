"""What a relay and the portal exchange. A relay is an access point without a database.

It answers `/api/v2/write` of agents and their polls of the desired state itself, and passes every
other request on as it came, with three headers: its token, the address of the client, and the
client certificate, if there is one. The portal authenticates the agent then, as always.

    GET  /relay/v1/registry?revision=R&wait_seconds=S
                              -> RegistrySnapshot, JSON; 204 if none is newer
    POST /relay/v1/changes    ChangesRequest -> ChangesReply, JSON; waits for a change
    POST /relay/v1/samples    RelayedWrites -> RelayedOutcomes, MessagePack
    POST /relay/v1/report     RelayReport -> 204, JSON; every ten seconds
"""

from typing import Annotated

import msgspec

PREFIX = "/relay/v1/"
TOKEN_HEADER = "X-Vedette-Relay"  # noqa: S105 - the name of a header
ADDRESS_HEADER = "X-Vedette-Relay-Address"
# As nginx escapes it (urlencoded PEM). Of its own name: proxies before the portal overwrite the one
# in access.identity.client_certificates with the certificate of the relay's connection.
CERTIFICATE_HEADER = "X-Vedette-Relay-Certificate"
MAX_SAMPLES_BYTES = 32 * 1024 * 1024
MAX_WRITES = 2_000
REPORT_SECONDS = 10.0


class RelayedAgent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that may authenticate, by the hash of its token."""

    appliance_id: str
    tenant_id: str
    name: str
    secret_hash: str


class RelayedCertificate(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate in use, by its SHA-256 fingerprint."""

    fingerprint: str
    appliance_id: str
    valid_until_ns: int


class RegistrySnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Who may authenticate at a relay.

    Attributes:
        revision: changes with the content.
        agents: those of the relay's tenant, or of all.
        certificates: in use. Others are new: the portal admits them at their first request.
        authorities: PEM of the CAs that sign agents' certificates.
        needs_certificate: a token alone is not accepted.
    """

    revision: str
    agents: list[RelayedAgent]
    certificates: list[RelayedCertificate]
    authorities: str
    needs_certificate: bool = False


class ChangesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The generations that waiting agents have, by appliance."""

    generations: dict[str, int]
    wait_seconds: Annotated[float, msgspec.Meta(ge=0, le=30)] = 25.0


class ChangesReply(msgspec.Struct, frozen=True, kw_only=True):
    """The appliances whose generation is another now, or that may not poll any longer."""

    changed: list[str]


class RelayedWrite(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The body of one `POST /api/v2/write` of an agent, line protocol, uncompressed.

    Samples that were stored before are replaced by themselves, so that it may be sent twice.
    """

    appliance_id: str
    precision: str
    body: bytes
    received_at_ns: int


class RelayedWrites(msgspec.Struct, frozen=True, kw_only=True):
    """Writes of any agents, oldest first; each is answered for itself."""

    writes: Annotated[list[RelayedWrite], msgspec.Meta(max_length=MAX_WRITES)]


class RelayedOutcome(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The answer to a write as the agent would have got it: 204, 400 with errors, 401, 429, 503."""

    status: int
    body: bytes = b""
    retry_after_seconds: int = 0


class RelayedOutcomes(msgspec.Struct, frozen=True, kw_only=True):
    """The answers, in the order of the writes."""

    outcomes: list[RelayedOutcome]


class RelayReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a relay is doing.

    Attributes:
        spool_bytes: of writes on its disk that the portal has not acknowledged.
        max_spool_bytes: above it the relay answers 503, and agents keep their samples.
        oldest_spooled_at_ns: when the oldest of them was received; 0 if there is none.
        refused_writes: since its start, because the spool was full.
        undeliverable_bytes: of lines on its disk that the portal did not store.
        agents: that sent something in the last minute.
    """

    version: str
    started_at_ns: int
    agents: int
    spool_bytes: int
    max_spool_bytes: int
    oldest_spooled_at_ns: int
    refused_writes: int
    requests_per_second: float
    cpu_percent: float
    memory_bytes: int
    undeliverable_bytes: int = 0
