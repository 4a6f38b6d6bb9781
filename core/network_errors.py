"""Why a connection failed, in the words of an administrator."""

import socket
import ssl
from http.client import HTTPException

# The first that fits; the order matters, because some are subclasses of others.
_REASONS: tuple[tuple[tuple[type[BaseException], ...], str], ...] = (
    (
        (ssl.SSLCertVerificationError,),
        "its certificate is not trusted ({error.verify_message})",
    ),
    ((ssl.SSLError,), "TLS failed ({error.reason})"),
    ((socket.gaierror,), "its host name can't be resolved"),
    ((TimeoutError,), "it timed out"),
    ((ConnectionResetError, BrokenPipeError), "it closed the connection"),
    ((HTTPException,), "its response is not HTTP"),
)


def why_it_failed(error: BaseException) -> str:
    """Return the reason of a failed connection as a phrase, such as `connection refused`."""
    for kinds, text in _REASONS:
        if isinstance(error, kinds):
            return text.format(error=error)
    strerror = error.strerror if isinstance(error, OSError) else None
    return strerror.lower() if strerror else str(error)
