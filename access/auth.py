"""Who pushes: an agent's certificate or secret becomes its appliance and tenant.

InfluxDB 2 clients send the secret as `Token SECRET`, others as `Bearer SECRET`. InfluxDB 1 clients
send it as a password, in Basic authentication, in the query or as `Token USER:SECRET`. With a
client certificate the secret may be left out; where both come they must be of the same appliance.
"""

import binascii
from base64 import b64decode

from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.types import Scope

from access.database import Database
from access.identity import CertificateReader, Headers
from access.refusals import Refusals
from access.roll import REMEMBER_FOR, Agent, Holder, RollKeeper
from core.clock import Clock
from core.errors import UnauthenticatedError
from core.ids import hash_secret
from tenants.entry.admission import admit_certificate
from tenants.entry.agents import authenticate_agent
from tenants.models import Appliance

__all__ = ["REMEMBER_FOR", "Agent", "Authenticator"]

_SCHEMES = frozenset({"token", "bearer"})


class Authenticator:
    """Finds the agent behind a request. For the tasks of one event loop.

    Args:
        database: where identities are kept.
        clock: the time.
        proxy_secret: by which the proxy in front is known.
        needs_certificate: whether a secret alone is not enough.
        refusals: how many an address may get.
    """

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock,
        proxy_secret: str = "",
        needs_certificate: bool = False,
        refusals: Refusals | None = None,
    ) -> None:
        self.refusals = refusals or Refusals(0.0)
        self._database = database
        self._clock = clock
        self._certificates = CertificateReader(proxy_secret)
        self._needs_certificate = needs_certificate
        self._roll = RollKeeper(database, clock=clock)

    async def agent(self, request: Request) -> Agent:
        """Return who sent the request, with a certificate, a secret or both.

        Raises:
            UnauthenticatedError: no proof, or one that is unknown, revoked or another's.
        """
        return await self.agent_of_headers(request.scope, headers_of(request.scope))

    async def renewing_agent(self, request: Request) -> tuple[Agent, bool]:
        """Return who asks for a certificate, and whether by the secret where that is not enough.

        Raises:
            UnauthenticatedError: no proof, or one that is unknown, revoked or another's.
        """
        scope, headers = request.scope, headers_of(request.scope)
        with self.refusals.counted(scope):
            if self._certificates.fingerprint(scope, headers) is None:
                secret = _token(request.headers.get("Authorization", ""))
                return await self._agent(scope, secret), self._needs_certificate
        return await self.agent_of_headers(scope, headers), False

    async def agent_of_headers(self, scope: Scope, headers: Headers) -> Agent:
        """Return who sent a request with these headers.

        Raises:
            UnauthenticatedError: no proof, or one that is unknown, revoked or another's.
        """
        authorization = headers.get(b"authorization", b"").decode("latin-1")
        try:  # and no context manager: nearly every request of the door comes through here
            fingerprint = self._certificates.fingerprint(scope, headers)
            if fingerprint is not None and not authorization:
                return await self._holder(fingerprint)
            return await self._proved(scope, _token(authorization), fingerprint)
        except UnauthenticatedError as refusal:
            self.refusals.count(scope, refusal)
            raise

    async def agent_of_influx_v1(self, request: Request) -> Agent:
        """Return who sent a request in the manner of InfluxDB 1.

        Raises:
            UnauthenticatedError: no proof, or one that is unknown, revoked or another's.
        """
        scope = request.scope
        has_secret = "Authorization" in request.headers or "p" in request.query_params
        with self.refusals.counted(scope):
            fingerprint = self._certificates.fingerprint(scope, headers_of(scope))
            if fingerprint is not None and not has_secret:
                return await self._holder(fingerprint)
            return await self._proved(scope, _password(request), fingerprint)

    async def _proved(self, scope: Scope, secret: str, fingerprint: str | None) -> Agent:
        if fingerprint is None:
            if self._needs_certificate:
                raise UnauthenticatedError(_CERTIFICATE_NEEDED, code="certificate_needed")
            return await self._agent(scope, secret)
        # The certificate goes first: its refusal says more than that the secret is unknown.
        holder = await self._holder(fingerprint)
        if (await self._agent(scope, secret)).appliance_id != holder.appliance_id:
            raise UnauthenticatedError(
                "The client certificate is of another appliance than the agent token. Enrol this "
                "appliance again.",
                code="two_identities",
            )
        return holder

    async def _agent(self, scope: Scope, secret: str) -> Agent:
        key, roll = hash_secret(secret), await self._roll.current()
        agent = roll.secrets.get(key)
        if agent is None:
            self.refusals.check(scope)
            # It enrolled since the roll was read, or is told why it may not come in. What was
            # found goes into the roll of before the query: a newer one may know of a revocation.
            agent = await self._database.run(lambda session: _find(session, secret))
            roll.secrets[key] = agent
        return agent

    async def _holder(self, fingerprint: str) -> Agent:
        roll, now = await self._roll.current(), self._clock()
        holder = roll.certificates.get(fingerprint)
        if holder is None or holder.until <= now:
            admission = await self._database.run(
                lambda session: admit_certificate(session, fingerprint, now=now)
            )
            # Raised out here: what led to a refusal was noted, and that must not be rolled back.
            if admission.appliance is None:
                raise UnauthenticatedError(admission.refusal, code="certificate_refused")
            holder = Holder(_agent_of(admission.appliance), admission.until)
            roll.certificates[fingerprint] = holder
        return holder.agent


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """Return the headers of a request; of several of one name the first counts."""
    return dict(reversed(scope["headers"]))


def _token(authorization: str) -> str:
    scheme, _, secret = authorization.partition(" ")
    if scheme.lower() not in _SCHEMES or not secret.strip():
        raise UnauthenticatedError(
            "This address is for agents. Send 'Authorization: Bearer <agent token>' "
            "or 'Authorization: Token <agent token>'."
        )
    return secret.strip()


def _password(request: Request) -> str:
    """Return the secret from where InfluxDB 1 looks: the query first, then the header."""
    secret = request.query_params.get("p", "")
    scheme, _, credentials = request.headers.get("Authorization", "").partition(" ")
    if not secret and scheme.lower() == "basic":
        secret = _basic_password(credentials)
    elif not secret and scheme.lower() in _SCHEMES:
        secret = credentials.strip().rpartition(":")[2]
    if not secret:
        raise UnauthenticatedError(
            "This address is for agents. Give the agent token as the password (any user name), "
            "or send 'Authorization: Token <agent token>'."
        )
    return secret


def _basic_password(credentials: str) -> str:
    try:
        return b64decode(credentials, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _find(session: Session, secret: str) -> Agent:
    return _agent_of(authenticate_agent(session, secret))


def _agent_of(appliance: Appliance) -> Agent:
    return Agent(appliance.id, appliance.tenant_id, appliance.name)


_CERTIFICATE_NEEDED = (
    "This portal asks for a client certificate, and none was shown. Connect to the address that "
    "the portal names in its enrolment command; the agent then shows its own."
)
