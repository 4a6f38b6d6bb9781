"""The verified client certificate of a request.

TLS ends either in this process, and the server has put the certificate into the ASGI scope, or at a
reverse proxy, which forwards it in headers. Any client can send such headers, so they are trusted
only with `proxy_secret`, which the proxy sends as well; without it the request is rejected.

Source: the ASGI specification's TLS extension; `$ssl_client_escaped_cert` of nginx.
"""

import binascii
import hashlib
import hmac
from base64 import b64decode
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from starlette.types import Scope

from core.errors import UnauthenticatedError

CERTIFICATE_HEADER = b"x-vedette-client-certificate"
VERIFY_HEADER = b"x-vedette-client-verify"
PROXY_HEADER = b"x-vedette-proxy"
VERIFIED = b"SUCCESS"
NO_CERTIFICATE = b"NONE"
_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
_REMEMBERED = 20_000


class CertificateReader:
    """Reads certificates; `proxy_secret` is what the reverse proxy sends, "" without a proxy."""

    def __init__(self, proxy_secret: str) -> None:
        self._proxy_secret = proxy_secret.encode()

    def fingerprint(self, scope: Scope) -> str | None:
        """Return the SHA-256 of the verified certificate in hex, or None if there is none.

        Raises:
            UnauthenticatedError: it was not verified, or the headers are not the proxy's.
        """
        # The first of several headers with one name counts.
        headers = dict(reversed(scope["headers"]))
        if PROXY_HEADER in headers or CERTIFICATE_HEADER in headers or VERIFY_HEADER in headers:
            return self._of_proxy(headers)
        shown = (scope.get("extensions") or {}).get("tls")
        chain = shown.get("client_cert_chain") if shown else None
        return _of_pem(next(iter(chain)).encode()) if chain else None

    def pem(self, scope: Scope) -> str:
        """Return the certificate whose fingerprint was read."""
        headers = dict(reversed(scope["headers"]))
        if CERTIFICATE_HEADER in headers:
            return unquote_to_bytes(headers[CERTIFICATE_HEADER]).decode("latin-1")
        return next(iter(scope["extensions"]["tls"]["client_cert_chain"]), "")

    def _of_proxy(self, headers: Mapping[bytes, bytes]) -> str | None:
        sent_secret = headers.get(PROXY_HEADER, b"")
        if not self._proxy_secret or not hmac.compare_digest(sent_secret, self._proxy_secret):
            raise UnauthenticatedError(
                "The request has client certificate headers of a proxy without the proxy's secret. "
                "Set proxy_secret to the secret that the proxy sends.",
                code="unknown_proxy",
            )
        verdict = headers.get(VERIFY_HEADER, NO_CERTIFICATE)
        if verdict == NO_CERTIFICATE:
            return None
        if verdict != VERIFIED:
            reason = verdict[:200].decode("latin-1")
            raise UnauthenticatedError(
                f"The client certificate could not be verified: {reason}.", code="bad_certificate"
            )
        return _of_escaped(headers.get(CERTIFICATE_HEADER, b""))


# Every request of an agent has the same text.
@lru_cache(maxsize=_REMEMBERED)
def _of_escaped(escaped: bytes) -> str:
    return _of_pem(unquote_to_bytes(escaped))


@lru_cache(maxsize=_REMEMBERED)
def _of_pem(pem: bytes) -> str:
    _, begin, after_begin = pem.partition(_BEGIN)
    body, end, _ = after_begin.partition(_END)
    try:
        der = b64decode(b"".join(body.split()), validate=True)
    except binascii.Error:
        der = b""
    if not (begin and end and der):
        raise UnauthenticatedError(
            "The client certificate is not in PEM form.", code="bad_certificate"
        )
    return hashlib.sha256(der).hexdigest()
