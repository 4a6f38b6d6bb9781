"""Requests that a relay passes on as they came, or sends itself.

A relay sends its token with each of them. Those of agents have the client's address and certificate
beside it, which are believed as if the client had connected here; the agent authenticates as
always, for the relay's tenant only if that is limited to one. Without the token of a relay such
headers mean nothing.
"""

from ipaddress import ip_address
from urllib.parse import unquote_to_bytes

from starlette.requests import HTTPConnection
from starlette.types import Scope

from access.errors import BadRequestError
from access.identity.agent_registry import Relay
from access.identity.auth import RELAY_KEY, Authenticator
from access.identity.client_certificates import CERTIFICATE_HEADER as PROXY_CERTIFICATE_HEADER
from access.identity.client_certificates import PROXY_HEADER, VERIFY_HEADER
from core.errors import UnauthenticatedError
from protocol.relays import ADDRESS_HEADER, CERTIFICATE_HEADER, PREFIX, TOKEN_HEADER

_TOKEN, _ADDRESS, _CERTIFICATE = (
    name.lower().encode() for name in (TOKEN_HEADER, ADDRESS_HEADER, CERTIFICATE_HEADER)
)
# What a proxy says about the connection of the relay is not about the client's.
_TAKEN = {_TOKEN, _ADDRESS, _CERTIFICATE, PROXY_HEADER, VERIFY_HEADER, PROXY_CERTIFICATE_HEADER}


def has_relay_token(scope: Scope) -> bool:
    """Return whether a request comes from a relay, as it says."""
    return any(name == _TOKEN for name, _ in scope.get("headers", ()))


async def admit_relay(scope: Scope, authenticator: Authenticator) -> None:
    """Authenticate the relay of a request, and give its client's address and certificate to it.

    Raises:
        UnauthenticatedError: the token is unknown or revoked.
        BadRequestError: the address is none.
    """
    # The first of several headers with one name counts.
    headers = dict(reversed(scope["headers"]))
    secret = headers[_TOKEN].decode("latin-1")
    scope[RELAY_KEY] = await authenticator.relay(HTTPConnection(scope), secret)
    scope["headers"] = [header for header in scope["headers"] if header[0] not in _TAKEN]
    if scope["path"].startswith(PREFIX):
        return
    address = headers.get(_ADDRESS, b"").decode("latin-1")
    try:
        scope["client"] = (str(ip_address(address)), 0)
    except ValueError as error:
        raise BadRequestError(f"{ADDRESS_HEADER}: {address[:50]!r} is not an address.") from error
    # Where the server puts the certificate of a client that connects to it.
    escaped = headers.get(_CERTIFICATE)
    chain = [] if not escaped else [unquote_to_bytes(escaped).decode("latin-1")]
    extensions = dict(scope.get("extensions") or {})
    scope["extensions"] = {**extensions, "tls": {"client_cert_chain": chain}}


def relay_of(scope: Scope) -> Relay:
    """Return the relay that sends a request.

    Raises:
        UnauthenticatedError: it has no token.
    """
    relay: Relay | None = scope.get(RELAY_KEY)
    if relay is None:
        raise UnauthenticatedError(
            f"This address is for relays. Send the relay's token as {TOKEN_HEADER}."
        )
    return relay
