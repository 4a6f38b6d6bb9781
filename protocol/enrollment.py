"""Bodies of `POST /agent/v1/enroll` and `/agent/v1/certificate`: how an agent gets its identity."""

import msgspec

from protocol.inventory import Inventory


class EnrollRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /agent/v1/enroll: exchange a one-time token for an identity.

    Agents send `token` as a bearer token, too, so that the portal can check it before the body.
    `csr` is a certificate signing request in PEM form; its key never leaves the appliance.
    """

    token: str
    name: str
    inventory: Inventory
    site: str = ""
    region: str = ""
    labels: dict[str, str] = {}
    csr: str = ""


class IssuedCertificate(msgspec.Struct, frozen=True, kw_only=True):
    """A client certificate and the authorities that the portal signs them with, in PEM form.

    With `replaces_secret` the certificate alone authenticates the agent: the token need not be sent
    with it. It is valid for `lifetime_seconds` from now.
    """

    certificate: str
    authorities: str
    lifetime_seconds: float
    replaces_secret: bool = False


class RenewalRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /agent/v1/certificate: request a new certificate, with the current one or the token."""

    csr: str


class EnrollReply(msgspec.Struct, frozen=True, kw_only=True):
    """The identity; `agent_token` is a secret that is sent only once."""

    appliance_id: str
    tenant_id: str
    agent_token: str
    certificate: IssuedCertificate | None = None
