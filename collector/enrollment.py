"""Enrollment: exchanges a one-time token for the identity of this appliance.

If the portal's certificate is from an authority that the system doesn't know, the enrollment
command has the authority's SHA-256. Its certificate is fetched from the portal, before the portal
is trusted, and stored if the hash matches.
"""

import ssl
import warnings
from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path

import urllib3

from collector.certificates import AgentCertificate, store_portal_authority
from collector.data_dir import Identity, require_writable, save_identity
from collector.errors import EnrollmentError, PortalRefusedError, PortalUnreachableError
from collector.sending.access_points import AccessPoints
from collector.sending.http import HTTP_ERRORS, HTTPClient, root_cause
from collector.sending.portal_connection import PortalConnection
from collector.tls import TLSContexts
from core.clock import utc_now
from protocol.enrollment import EnrollRequest
from protocol.inventory import Inventory

INVALID_TOKEN = frozenset({401, 403, 404, 410})
AUTHORITY_PATH = "/agent/v1/authority"
TIMEOUT_SECONDS = 10.0
OK = 200


def enroll(
    *,
    portal_url: str,
    token: str,
    name: str,
    inventory: Inventory,
    data_dir: Path,
    site: str = "",
    labels: Mapping[str, str] | None = None,
    tls: TLSContexts | None = None,
) -> Identity:
    """Enroll this appliance and store its identity in `data_dir`.

    Over https, the portal also issues a client certificate for a key that is created here.

    Raises:
        EnrollmentError: the data folder isn't writable, the portal can't be reached, or the token
            is malformed or rejected.
        CertificateError: the key or the certificate can't be stored.
    """
    if not (token.isascii() and token.isprintable()):
        raise EnrollmentError("The token has characters that no token has. Copy it again.")
    # Before the token is used up: otherwise an appliance would exist that has no agent.
    require_writable(data_dir)
    certificate = AgentCertificate(data_dir)
    request = EnrollRequest(
        token=token,
        name=name,
        inventory=inventory,
        site=site,
        labels=dict(labels or {}),
        csr=certificate.create_request() if portal_url.startswith("https:") else "",
    )
    portal = PortalConnection(AccessPoints([portal_url]), tls=tls)
    try:
        reply = portal.enroll(request)
    except PortalUnreachableError as error:
        raise EnrollmentError(
            f"Can't reach {portal_url}: {error.message} Check the address and the network."
        ) from error
    except PortalRefusedError as error:
        raise EnrollmentError(_refusal(error)) from error
    finally:
        portal.close()
    identity = Identity(
        appliance_id=reply.appliance_id, tenant_id=reply.tenant_id, agent_token=reply.agent_token
    )
    save_identity(data_dir, identity)
    if reply.certificate is None:
        certificate.remove()
    else:
        certificate.store(reply.certificate, now=utc_now())
    return identity


def fetch_authority(portal_url: str, fingerprint: str, *, data_dir: Path) -> None:
    """Fetch the authority of the portal's certificate and store it if its SHA-256 matches.

    Raises:
        EnrollmentError: the portal can't be reached, has no authority or another one, or the
            folder isn't writable.
    """
    pem = _fetch_untrusted(portal_url)
    try:
        digest = sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
    except ValueError as error:
        raise EnrollmentError(
            f"{portal_url}{AUTHORITY_PATH} returned no certificate. Is this a Vedette portal?"
        ) from error
    expected = fingerprint.replace(":", "").strip().lower()
    if not compare_digest(digest.encode(), expected.encode()):
        raise EnrollmentError(
            f"The authority of {portal_url} has the SHA-256 {digest}, but the command expects "
            f"{expected}. Copy the command again. If they still differ, the connection may be "
            "intercepted."
        )
    store_portal_authority(pem, data_dir=data_dir)


class _NoVerification(TLSContexts):
    """Accepts any certificate: the authority is verified by its hash."""

    def current(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context


def _fetch_untrusted(portal_url: str) -> str:
    if not portal_url.startswith("https:"):
        raise EnrollmentError(f"{portal_url} is not https://, so it has no authority to verify.")
    http = HTTPClient(_NoVerification())
    url = f"{portal_url.rstrip('/')}{AUTHORITY_PATH}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", urllib3.exceptions.InsecureRequestWarning)
            response = http.request("GET", url, timeout_seconds=TIMEOUT_SECONDS)
    except HTTP_ERRORS as error:
        raise EnrollmentError(
            f"Can't reach {portal_url}: {root_cause(error)}. Check the address and the network."
        ) from error
    finally:
        http.close()
    if response.status != OK:
        raise EnrollmentError(
            f"{url} answered {response.status}: this portal publishes no authority. Copy the "
            "command again from the portal."
        )
    return response.data.decode("ascii", errors="replace")


def _refusal(error: PortalRefusedError) -> str:
    if error.http_status in INVALID_TOKEN:
        return (
            f"The portal rejects this token: {error.message} A token is valid once, and for a "
            "limited time. Create a new one on the portal's appliances page."
        )
    return f"The portal refused to enroll this appliance: {error.message}"
