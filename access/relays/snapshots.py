"""Snapshots of the agent registry for relays: made in a thread, once for each state of it.

With 10,000 agents a snapshot has 3 MB, and half of that compressed. The revision is a hash of what
it has, so that all processes of the portal give the same content the same revision; before it
stands the revision of the registry in the database, which blocking an agent increments.
"""

import asyncio
from dataclasses import dataclass
from hashlib import sha256

import msgspec
from anyio import to_thread
from isal import igzip

from access.database import Database
from access.identity.agent_registry import Agent, AgentRegistry, Certificate, Relay
from core.clock import Clock, to_ns
from protocol.relays import RegistrySnapshot, RelayedAgent, RelayedCertificate
from tenants.pki.authority import authorities_pem

# Relays of more tenants than these make snapshots anew.
MAX_CACHED = 64
_LEVEL = 1


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot as a relay gets it: JSON, compressed by gzip."""

    revision: str
    body: bytes

    def is_news(self, revision: str, *, is_urgent_only: bool) -> bool:
        """Return whether it has other content than a revision.

        Args:
            revision: what the relay has; any other text is of no snapshot.
            is_urgent_only: whether new agents and certificates don't count: the portal admits them
                at their first request. What was blocked does.
        """
        number, _, digest = self.revision.partition("-")
        known_number, _, known_digest = revision.partition("-")
        return digest != known_digest and not (
            is_urgent_only and known_digest and number == known_number
        )


@dataclass(slots=True)
class _Cached:
    """A snapshot with what it was made of: agents are added to a registry as they appear."""

    registry: AgentRegistry
    sizes: tuple[int, int]
    snapshot: Snapshot


class Snapshots:
    """The snapshots of this process. For the tasks of one event loop."""

    def __init__(self, database: Database, *, needs_certificate: bool, clock: Clock) -> None:
        self._database = database
        self._needs_certificate = needs_certificate
        self._clock = clock
        self._cached: dict[str | None, _Cached] = {}
        self._making = asyncio.Lock()

    async def current(self, relay: Relay, registry: AgentRegistry) -> Snapshot:
        """Return the snapshot of a registry for a relay."""
        async with self._making:
            cached = self._cached.get(relay.tenant_id)
            sizes = (len(registry.secrets), len(registry.certificates))
            if cached is not None and cached.registry is registry and cached.sizes == sizes:
                return cached.snapshot
            now = self._clock()
            authorities = await self._database.run(
                lambda session: authorities_pem(session, now=now)
            )
            # Copied here: the tasks of the loop add to the registry meanwhile.
            snapshot = await to_thread.run_sync(
                self._made,
                relay,
                registry.revision,
                list(registry.secrets.items()),
                list(registry.certificates.items()),
                authorities,
                None if cached is None else cached.snapshot,
            )
            if len(self._cached) >= MAX_CACHED:
                self._cached.clear()
            self._cached[relay.tenant_id] = _Cached(registry, sizes, snapshot)
            return snapshot

    def _made(  # noqa: PLR0917 - passed to a thread
        self,
        relay: Relay,
        number: int,
        secrets: list[tuple[str, Agent]],
        certificates: list[tuple[str, Certificate]],
        authorities: str,
        former: Snapshot | None,
    ) -> Snapshot:
        agents = [
            RelayedAgent(
                appliance_id=agent.appliance_id,
                tenant_id=agent.tenant_id,
                name=agent.name,
                secret_hash=key,
            )
            for key, agent in secrets
            if relay.may_act_for(agent.tenant_id)
        ]
        used = [
            RelayedCertificate(
                fingerprint=fingerprint,
                appliance_id=certificate.agent.appliance_id,
                valid_until_ns=to_ns(certificate.valid_until),
            )
            for fingerprint, certificate in certificates
            if relay.may_act_for(certificate.agent.tenant_id)
        ]
        # In an order that all processes agree on.
        agents.sort(key=lambda agent: (agent.appliance_id, agent.secret_hash))
        used.sort(key=lambda certificate: certificate.fingerprint)
        content = RegistrySnapshot(
            revision="",
            agents=agents,
            certificates=used,
            authorities=authorities,
            needs_certificate=self._needs_certificate,
        )
        digest = sha256(msgspec.json.encode(content)).hexdigest()[:32]
        revision = f"{number}-{digest}"
        if former is not None and former.revision == revision:
            return former
        body = msgspec.json.encode(msgspec.structs.replace(content, revision=revision))
        return Snapshot(revision, igzip.compress(body, compresslevel=_LEVEL))
