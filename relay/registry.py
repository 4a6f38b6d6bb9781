"""Who may authenticate at a relay: the portal's registry, with a copy on disk.

A restarted relay accepts its agents while the portal is away. A copy that the portal has not
confirmed for long counts no more. Who is not in the registry may be new: the portal decides.
"""

import asyncio
import logging
from datetime import timedelta
from pathlib import Path

import msgspec
from starlette.types import Scope

from access.identity.client_certificates import CertificateReader
from core.atomic_files import replace_file
from core.clock import NS_PER_SECOND, Clock, from_ns, to_ns, utc_now
from core.errors import UnauthenticatedError
from core.ids import hash_secret
from protocol.relays import RegistrySnapshot, RelayedAgent, RelayedCertificate
from relay.errors import UpstreamAwayError, UpstreamRefusedError
from relay.upstream import Upstream

log = logging.getLogger(__name__)

WAIT_SECONDS = 25.0
RETRY_SECONDS = 2.0
# How often the copy's time is written, when nothing else has changed.
CONFIRM_SECONDS = 300.0
_SCHEMES = frozenset({"token", "bearer"})


class StoredRegistry(msgspec.Struct, frozen=True, kw_only=True):
    """The copy on disk: a snapshot, and when the portal said last that it is current."""

    confirmed_at_ns: int
    snapshot: RegistrySnapshot


class Registry:
    """The agents that may authenticate. For the tasks of one event loop.

    Args:
        path: of the copy on disk.
        authorities_path: where the CA certificates are written for TLS.
        max_age_seconds: since the portal confirmed it.
        clock: the time.
    """

    def __init__(
        self, path: Path, *, authorities_path: Path, max_age_seconds: float, clock: Clock = utc_now
    ) -> None:
        self._path = path
        self._authorities_path = authorities_path
        self._max_age = timedelta(seconds=max_age_seconds)
        self._clock = clock
        self._reader = CertificateReader("")
        self._agents: dict[str, RelayedAgent] = {}
        self._by_secret: dict[str, RelayedAgent] = {}
        self._certificates: dict[str, RelayedCertificate] = {}
        self._use(RegistrySnapshot(revision="", agents=[], certificates=[], authorities=""))
        self._confirmed_at_ns = self._written_at_ns = 0

    @property
    def has_snapshot(self) -> bool:
        """Whether there is a registry, of whatever age."""
        return bool(self._confirmed_at_ns)

    @property
    def size(self) -> int:
        """The number of agents."""
        return len(self._by_secret)

    @property
    def age_seconds(self) -> float | None:
        """Seconds since the portal confirmed the registry; None without one."""
        if not self._confirmed_at_ns:
            return None
        return (self._clock() - from_ns(self._confirmed_at_ns)).total_seconds()

    @property
    def is_fresh(self) -> bool:
        """Whether agents are authenticated by it."""
        age_seconds = self.age_seconds
        return age_seconds is not None and age_seconds < self._max_age.total_seconds()

    def load(self) -> None:
        """Read the copy on disk, if there is one."""
        try:
            stored = msgspec.json.decode(self._path.read_bytes(), type=StoredRegistry)
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("can't read %s, starting without it: %s", self._path, error)
            return
        self._use(stored.snapshot)
        # Not later than now, whatever the clock was: it would count for longer.
        self._confirmed_at_ns = min(stored.confirmed_at_ns, to_ns(self._clock()))
        self._written_at_ns = self._confirmed_at_ns

    def agent(self, scope: Scope, authorization: str) -> RelayedAgent | None:
        """Return the agent of a request; None if the portal has to decide.

        Args:
            scope: of the request; it may have a verified client certificate.
            authorization: the header, with the agent's token.
        """
        if not self.is_fresh:
            return None
        try:
            fingerprint = self._reader.fingerprint(scope)
        except UnauthenticatedError:
            return None
        of_certificate = self._agent_of_certificate(fingerprint) if fingerprint else None
        if fingerprint and not authorization:
            return of_certificate
        if self._snapshot.needs_certificate and not fingerprint:
            return None
        scheme, _, secret = authorization.partition(" ")
        of_token = None
        if scheme.lower() in _SCHEMES:
            of_token = self._by_secret.get(hash_secret(secret.strip()))
        return of_token if of_token == of_certificate or not fingerprint else None

    async def follow(self, upstream: Upstream) -> None:
        """Keep the registry current, for as long as the relay runs."""
        # New agents are news at the end of a wait, which a line that fails often never reaches.
        wait_seconds = 0.0
        while True:
            try:
                await self.refresh(upstream, wait_seconds=wait_seconds)
                wait_seconds = WAIT_SECONDS
                continue
            except (UpstreamAwayError, UpstreamRefusedError) as error:
                log.debug("can't read the registry: %s", error.message)
                await asyncio.sleep(RETRY_SECONDS)
            except OSError as error:
                log.warning("can't write %s: %s", self._path, error.strerror)
                await asyncio.sleep(RETRY_SECONDS)
            wait_seconds = 0.0

    async def refresh(self, upstream: Upstream, *, wait_seconds: float) -> None:
        """Get the registry from the portal once it has changed, at the latest after the wait.

        Raises:
            UpstreamAwayError: the portal does not answer.
            UpstreamRefusedError: it does not accept the relay's token.
            OSError: the copy can't be written; the registry is in use.
        """
        snapshot = await upstream.registry(self._snapshot.revision, wait_seconds=wait_seconds)
        now_ns = self._confirmed_at_ns = to_ns(self._clock())
        if snapshot is not None:
            self._use(snapshot)
        if snapshot is not None or now_ns - self._written_at_ns >= CONFIRM_SECONDS * NS_PER_SECOND:
            stored = StoredRegistry(confirmed_at_ns=now_ns, snapshot=self._snapshot)
            await asyncio.to_thread(self._write, stored)
            self._written_at_ns = now_ns

    def _agent_of_certificate(self, fingerprint: str) -> RelayedAgent | None:
        certificate = self._certificates.get(fingerprint)
        if certificate is None or certificate.valid_until_ns <= to_ns(self._clock()):
            return None
        return self._agents.get(certificate.appliance_id)

    def _use(self, snapshot: RegistrySnapshot) -> None:
        self._snapshot = snapshot
        self._agents = {agent.appliance_id: agent for agent in snapshot.agents}
        self._by_secret = {agent.secret_hash: agent for agent in snapshot.agents}
        self._certificates = {entry.fingerprint: entry for entry in snapshot.certificates}

    def _write(self, stored: StoredRegistry) -> None:
        authorities = stored.snapshot.authorities.encode()
        path = self._authorities_path
        # TLS loads the file whenever it is another one.
        if not path.exists() or path.read_bytes() != authorities:
            replace_file(path, authorities)
        replace_file(self._path, msgspec.json.encode(stored))
