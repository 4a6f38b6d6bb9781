"""The client certificate behind a request, as far as it can be believed.

TLS ends in one of two places. In this process: then the server has put the certificate into the
ASGI scope. Or at a proxy in front, which passes it on in headers. Anybody can send such headers, so
they are believed only beside the secret that the proxy and this server share (`proxy_secret`), and
a request that has them without it is refused.

Source: the ASGI specification's TLS extension; `$ssl_client_escaped_cert` of nginx.
"""

import binascii
import hashlib
import hmac
from base64 import b64decode
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import unquote_to_bytes

from starlette.types import Scope

from core.errors import UnauthenticatedError

CERTIFICATE_HEADER = b"x-vedette-client-certificate"
VERIFY_HEADER = b"x-vedette-client-verify"
PROXY_HEADER = b"x-vedette-proxy"
VERIFIED = b"SUCCESS"
NOT_SHOWN = b"NONE"
_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
_REMEMBERED = 20_000

Headers = Mapping[bytes, bytes]


class CertificateReader:
    """Reads the certificate of a request.

    Args:
        proxy_secret: what the proxy in front sends with its headers; empty where there is none.
    """

    def __init__(self, proxy_secret: str) -> None:
        self._proxy_secret = proxy_secret.encode()

    def fingerprint(self, scope: Scope, headers: Headers) -> str | None:
        """Return the SHA-256 of the verified certificate in hex, or None where none was shown.

        Raises:
            UnauthenticatedError: the proxy could not verify it, or the headers are not a proxy's.
        """
        if PROXY_HEADER in headers or CERTIFICATE_HEADER in headers or VERIFY_HEADER in headers:
            return self._of_proxy(headers)
        shown = (scope.get("extensions") or _NOTHING).get("tls")
        chain = shown.get("client_cert_chain") if shown else None
        return _of_pem(next(iter(chain)).encode()) if chain else None

    def _of_proxy(self, headers: Headers) -> str | None:
        given = headers.get(PROXY_HEADER, b"")
        if not self._proxy_secret or not hmac.compare_digest(given, self._proxy_secret):
            raise UnauthenticatedError(
                "The request has a proxy's headers about a client certificate, and not the secret "
                "of a proxy that is known here. Set proxy_secret to what the proxy sends.",
                code="unknown_proxy",
            )
        verdict = headers.get(VERIFY_HEADER, NOT_SHOWN)
        if verdict == NOT_SHOWN:
            return None
        if verdict != VERIFIED:
            told = verdict[:200].decode("latin-1")
            raise UnauthenticatedError(
                f"The client certificate could not be verified: {told}.", code="bad_certificate"
            )
        return _of_escaped(headers.get(CERTIFICATE_HEADER, b""))


_NOTHING: Mapping[str, Any] = {}


# Every request of an agent comes with the same text.
@lru_cache(maxsize=_REMEMBERED)
def _of_escaped(escaped: bytes) -> str:
    return _of_pem(unquote_to_bytes(escaped))


@lru_cache(maxsize=_REMEMBERED)
def _of_pem(pem: bytes) -> str:
    _, begin, rest = pem.partition(_BEGIN)
    body, end, _ = rest.partition(_END)
    try:
        der = b64decode(b"".join(body.split()), validate=True)
    except binascii.Error:
        der = b""
    if not (begin and end and der):
        raise UnauthenticatedError(
            "The client certificate is not in PEM form.", code="bad_certificate"
        )
    return hashlib.sha256(der).hexdigest()
