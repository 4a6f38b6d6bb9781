"""Authentication of agents by client certificate, agent token or both.

InfluxDB 2 clients send the token as `Token SECRET`, others as `Bearer SECRET`. InfluxDB 1 clients
send it as a password: in Basic authentication, in the query or as `Token USER:SECRET`. With a
client certificate the token may be omitted; if both are sent they must belong to one appliance.
"""

import binascii
import math
from base64 import b64decode
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial

from sqlalchemy.orm import Session
from starlette.requests import HTTPConnection, Request
from starlette.types import Scope

from access.database import Database
from access.identity.agent_registry import (
    Agent,
    AgentRegistry,
    AgentRegistryCache,
    Certificate,
    Relay,
    WriteGrant,
    new_agents,
    new_relay,
    new_write_grant,
)
from access.identity.client_certificates import CertificateReader
from core.clock import Clock
from core.errors import OverloadedError, UnauthenticatedError
from core.ids import hash_secret
from core.rate_limits import RateLimit
from core.request_notes import APPLIANCE_ID, TENANT_ID, note
from core.turns import WRITER
from tenants.fleet.agents import authenticate_agent
from tenants.models import Appliance
from tenants.pki.admission import CERTIFICATE_NEEDED, admit_certificate, refuse_expired
from tenants.users.throttling import network_of
from tenants.write_tokens import WRITE_TOKEN_PREFIX

_SCHEMES = frozenset({"token", "bearer"})
# In the ASGI scope of a request that a relay passes on, or sends itself.
RELAY_KEY = "vedette.relay"
# In one query.
_MAX_NAMED = 500


class TooManyAuthFailuresError(OverloadedError):
    """Too many authentications from an address failed."""

    default_code = "too_many_requests"


class AuthFailureLimiter:
    """Limits failed authentications by address.

    Agents in the registry are never limited, nor is the first use of a certificate, which TLS has
    verified: only agent tokens and enrollment tokens can be guessed.

    Args:
        limit: of the failures of an address.
    """

    def __init__(self, limit: RateLimit) -> None:
        self._limit = limit

    def check(self, scope: Scope) -> None:
        """Raise `TooManyAuthFailuresError` if the address has reached the limit."""
        _raise_if(self._limit.wait_seconds(_address(scope)))

    @contextmanager
    def counted(self, scope: Scope) -> Iterator[None]:
        """Count an authentication that fails in the block.

        Raises:
            TooManyAuthFailuresError: the failure exceeds the limit.
        """
        try:
            yield
        except UnauthenticatedError:
            _raise_if(self._limit.hit(_address(scope)))
            raise


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return network_of(client[0]) if client else "none"


def _raise_if(wait_seconds: float) -> None:
    if wait_seconds:
        retry_after = math.ceil(wait_seconds)
        raise TooManyAuthFailuresError(
            "Too many authentications from this address failed. Check its agents for unknown or "
            f"revoked tokens, and wait {retry_after} s.",
            retry_after_seconds=retry_after,
        )


class Authenticator:
    """Authenticates the agent of a request. For the tasks of one event loop.

    With `needs_certificate`, a token alone is not accepted.
    """

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock,
        proxy_secret: str = "",
        needs_certificate: bool = False,
        failures: AuthFailureLimiter | None = None,
    ) -> None:
        self.failures = failures or AuthFailureLimiter(RateLimit(0.0))
        self._database = database
        self._clock = clock
        self._certificates = CertificateReader(proxy_secret)
        self._needs_certificate = needs_certificate
        self._registry = AgentRegistryCache(database, clock=clock)

    async def agent(self, request: HTTPConnection) -> Agent:
        """Return the agent of a request.

        Raises:
            UnauthenticatedError: no credentials, or unknown, revoked or mismatched ones.
        """
        scope = request.scope
        authorization = request.headers.get("Authorization", "")
        with self.failures.counted(scope):
            fingerprint = self._certificates.fingerprint(scope)
            if fingerprint is not None and not authorization:
                return await self._agent_of_certificate(scope, fingerprint)
            return await self._verified(scope, _token(authorization), fingerprint)

    def agent_at_once(self, scope: Scope) -> Agent | None:
        """Return the agent of a request if no query is needed for that; else ask `agent`."""
        headers, registry = dict(reversed(scope["headers"])), self._registry.at_once()
        if registry is None:
            return None
        try:
            fingerprint = self._certificates.fingerprint(scope)
            authorization = headers.get(b"authorization", b"").decode("latin-1")
            secret = "" if fingerprint and not authorization else _token(authorization)
        except UnauthenticatedError:
            return None
        by_token = registry.secrets.get(hash_secret(secret)) if secret else None
        if fingerprint is None:
            return None if self._needs_certificate else by_token
        certificate = registry.certificates.get(fingerprint)
        if certificate is None or certificate.valid_until <= self._clock():
            return None
        return certificate.agent if by_token == certificate.agent or not secret else None

    async def relay(self, connection: HTTPConnection, secret: str) -> Relay:
        """Return the relay with a token, which is not the agent's that it passes on.

        Raises:
            UnauthenticatedError: the token is unknown or revoked.
        """
        with self.failures.counted(connection.scope):
            key = hash_secret(secret)
            relay = (await self._registry.current()).relays.get(key)
            if relay is None:  # perhaps a new one
                self.failures.check(connection.scope)
                registry = await self._registry.current()
                relay = await self._database.run(partial(new_relay, key))
                if relay is not None:
                    registry.relays[key] = relay
                    self._registry.note_lacking()
            if relay is None:
                raise UnauthenticatedError(
                    "The token of this relay is unknown or revoked. Create a new one under "
                    "Console, Access points.",
                    code="unknown_relay",
                )
        return relay

    async def registry(self) -> AgentRegistry:
        """Return who may authenticate now."""
        return await self._registry.current()

    async def agents_for(self, relay: Relay, appliance_ids: Collection[str]) -> dict[str, Agent]:
        """Return the agents of appliances, by id, that a relay acts for and that are admitted."""
        registry = await self._registry.current()
        unknown = [ident for ident in appliance_ids if ident not in registry.appliances]
        for start in range(0, len(unknown), _MAX_NAMED):
            named = unknown[start : start + _MAX_NAMED]
            registry.appliances.update(await self._database.run(partial(new_agents, named)))
            self._registry.note_lacking()
        agents = ((ident, registry.appliances.get(ident)) for ident in appliance_ids)
        return {
            ident: agent
            for ident, agent in agents
            if agent is not None and relay.may_act_for(agent.tenant_id)
        }

    async def sender(self, request: Request, *, password: bool = False) -> Agent | WriteGrant:
        """Return who sends samples: an agent, or a program with a write token.

        A write token needs no client certificate: it can do nothing but write samples.

        Args:
            request: the request.
            password: the token may be the password of a client of InfluxDB 1.

        Raises:
            UnauthenticatedError: no credentials, or unknown, revoked, expired or mismatched ones.
        """
        secret = _write_token(request, password=password)
        if not secret:
            agent_of = self.agent_of_influx_v1 if password else self.agent
            return await agent_of(request)
        with self.failures.counted(request.scope):
            key, now = hash_secret(secret), self._clock()
            grant = (await self._registry.current()).write_tokens.get(key)
            if grant is None:  # perhaps a new one
                grant = await self._database.run(
                    lambda session: new_write_grant(session, key, now=now)
                )
                if grant is not None:
                    self._registry.note_lacking()
            if grant is None or grant.expires_at <= self._clock():
                raise UnauthenticatedError(
                    "This write token is unknown, expired or revoked. Create a new one under "
                    "Appliances, Add."
                )
            require_relayed(request.scope, grant.tenant_id)
        WRITER.set(grant.tenant_id)
        note(TENANT_ID, grant.tenant_id)
        return grant

    async def renewing_agent(self, request: Request) -> tuple[Agent, bool]:
        """Return the agent that renews its certificate, and whether it has only its token left.

        A token is accepted even where a certificate is required, because that may have expired.

        Raises:
            UnauthenticatedError: no credentials, or unknown, revoked or mismatched ones.
        """
        scope = request.scope
        with self.failures.counted(scope):
            if self._certificates.fingerprint(scope) is None:
                secret = _token(request.headers.get("Authorization", ""))
                return await self._agent_of_token(scope, secret), self._needs_certificate
        return await self.agent(request), False

    async def agent_of_influx_v1(self, request: Request) -> Agent:
        """Return the agent of a request of an InfluxDB 1 client; raises as `agent` does."""
        scope = request.scope
        has_secret = "Authorization" in request.headers or "p" in request.query_params
        with self.failures.counted(scope):
            fingerprint = self._certificates.fingerprint(scope)
            if fingerprint is not None and not has_secret:
                return await self._agent_of_certificate(scope, fingerprint)
            return await self._verified(scope, _password(request), fingerprint)

    async def _verified(self, scope: Scope, secret: str, fingerprint: str | None) -> Agent:
        if fingerprint is None:
            if self._needs_certificate:
                self.failures.check(scope)
                await self._database.run(
                    lambda session: _refuse_without_certificate(session, secret, now=self._clock())
                )
            return await self._agent_of_token(scope, secret)
        # The certificate first: its error says more than that the token is unknown.
        agent = await self._agent_of_certificate(scope, fingerprint)
        if (await self._agent_of_token(scope, secret)).appliance_id != agent.appliance_id:
            raise UnauthenticatedError(
                "The client certificate and the agent token belong to different appliances. Enroll "
                "this appliance again.",
                code="two_identities",
            )
        return agent

    async def _agent_of_token(self, scope: Scope, secret: str) -> Agent:
        key, registry = hash_secret(secret), await self._registry.current()
        agent = registry.secrets.get(key)
        if agent is None:
            self.failures.check(scope)
            # It has enrolled since the registry was loaded, or the query raises why it is rejected.
            # The agent is added to the registry before the query: a newer one may lack it.
            agent = await self._database.run(
                lambda session: _agent_of(authenticate_agent(session, secret))
            )
            registry.secrets[key] = agent
            self._registry.note_lacking()
        return _noted(scope, agent)

    async def _agent_of_certificate(self, scope: Scope, fingerprint: str) -> Agent:
        registry, now = await self._registry.current(), self._clock()
        certificate = registry.certificates.get(fingerprint)
        if certificate is None or certificate.valid_until <= now:
            pem = self._certificates.pem(scope)
            admission = await self._database.run(
                lambda session: admit_certificate(session, fingerprint, pem=pem, now=now)
            )
            # Raised after the transaction, which records why the certificate was rejected.
            if admission.appliance is None:
                raise UnauthenticatedError(admission.refusal, code="certificate_refused")
            certificate = Certificate(_agent_of(admission.appliance), admission.until)
            registry.certificates[fingerprint] = certificate
            self._registry.note_lacking()
        return _noted(scope, certificate.agent)


def require_relayed(scope: Scope, tenant_id: str) -> None:
    """Refuse a request that the relay of one tenant passes on for another.

    Raises:
        UnauthenticatedError: the relay does not act for the tenant.
    """
    relay: Relay | None = scope.get(RELAY_KEY)
    if relay is not None and not relay.may_act_for(tenant_id):
        raise UnauthenticatedError(
            "This access point is for the appliances of another tenant. Use another address of "
            "the portal.",
            code="foreign_relay",
        )


def _noted(scope: Scope, agent: Agent) -> Agent:
    """Let the rest of the request know its agent."""
    require_relayed(scope, agent.tenant_id)
    WRITER.set(agent.tenant_id)
    note(TENANT_ID, agent.tenant_id)
    note(APPLIANCE_ID, agent.appliance_id)
    return agent


def _write_token(request: Request, *, password: bool) -> str:
    """Return the write token of a request; "" if it has another secret or none."""
    secret = request.headers.get("Authorization", "").partition(" ")[2].strip()
    if password:
        with suppress(UnauthenticatedError):
            secret = _password(request)
    return secret if secret.startswith(f"{WRITE_TOKEN_PREFIX}_") else ""


def _token(authorization: str) -> str:
    scheme, _, secret = authorization.partition(" ")
    if scheme.lower() not in _SCHEMES or not secret.strip():
        raise UnauthenticatedError(
            "This address is for agents. Send 'Authorization: Bearer <agent token>' "
            "or 'Authorization: Token <agent token>'."
        )
    return secret.strip()


def _password(request: Request) -> str:
    """Return the password as InfluxDB 1 does: from the query first, then from the header."""
    secret = request.query_params.get("p", "")
    scheme, _, credentials = request.headers.get("Authorization", "").partition(" ")
    if not secret and scheme.lower() == "basic":
        with suppress(binascii.Error, UnicodeDecodeError):
            secret = b64decode(credentials, validate=True).decode().partition(":")[2]
    elif not secret and scheme.lower() in _SCHEMES:
        secret = credentials.strip().rpartition(":")[2]
    if not secret:
        raise UnauthenticatedError(
            "This address is for agents. Give the agent token as the password (any user name), "
            "or send 'Authorization: Token <agent token>'."
        )
    return secret


def _refuse_without_certificate(session: Session, secret: str, *, now: datetime) -> None:
    """Refuse a token alone; says more to an agent whose certificate has expired."""
    refuse_expired(session, authenticate_agent(session, secret), now=now)
    raise UnauthenticatedError(_CERTIFICATE_NEEDED, code=CERTIFICATE_NEEDED)


def _agent_of(appliance: Appliance) -> Agent:
    return Agent(appliance.id, appliance.tenant_id, appliance.name)


_CERTIFICATE_NEEDED = (
    "This portal requires a client certificate, and the request has none. Connect to the address "
    "in the portal's enrollment command; the agent then sends its certificate."
)
