"""Asks a portal for the authority of its certificate, before anything else is said to it.

The command that enrols an appliance names its SHA-256. The authority itself is asked of the portal,
whoever that may be, and kept when the two are the same.
"""

import ssl
import warnings
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path

import urllib3

from collector.certificates.portal_authority import keep_authority
from collector.errors import EnrolmentError
from collector.sending.answers import root_cause
from collector.sending.connections import Connections, HTTPFailure
from collector.sending.tls import TLSContexts

AUTHORITY_PATH = "/agent/v1/authority"
TIMEOUT_SECONDS = 10.0
OK = 200


def learn_authority(portal_url: str, fingerprint: str, *, data_dir: Path) -> None:
    """Ask the portal for its authority, and keep it when its SHA-256 is this.

    Raises:
        EnrolmentError: the portal can't be reached, tells none or another, or the folder can't be
            written.
    """
    pem = _fetch(portal_url)
    try:
        found = sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
    except ValueError as error:
        raise EnrolmentError(
            f"{portal_url}{AUTHORITY_PATH} holds no certificate. Is this a Vedette portal?"
        ) from error
    wanted = fingerprint.replace(":", "").strip().lower()
    if not compare_digest(found.encode(), wanted.encode()):
        raise EnrolmentError(
            f"The portal at {portal_url} shows an authority with the SHA-256 {found}, and the "
            f"command names {wanted}. Copy the command again; if they still differ, somebody "
            "stands between this appliance and the portal."
        )
    keep_authority(pem, data_dir=data_dir)


class _AnyPortal(TLSContexts):
    """Believes whoever answers: what they say is compared afterwards."""

    def current(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context


def _fetch(portal_url: str) -> str:
    if not portal_url.startswith("https:"):
        raise EnrolmentError(f"{portal_url} is not https://, so there is no authority to compare.")
    connections = Connections(_AnyPortal())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", urllib3.exceptions.InsecureRequestWarning)
            answer = connections.request(
                "GET",
                f"{portal_url.rstrip('/')}{AUTHORITY_PATH}",
                timeout_seconds=(TIMEOUT_SECONDS, TIMEOUT_SECONDS),
            )
    except HTTPFailure as error:
        raise EnrolmentError(
            f"{portal_url} can't be reached: {root_cause(error)}. Check the address and the "
            "network."
        ) from error
    finally:
        connections.close()
    if answer.status != OK:
        raise EnrolmentError(
            f"{portal_url}{AUTHORITY_PATH} answered {answer.status}: this portal tells no "
            "authority. Copy the command again from its page."
        )
    return answer.data.decode("ascii", errors="replace")
