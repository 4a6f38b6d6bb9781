"""Headers of web pages of jobs: what of a request reaches the job, and of its response the user.

The job gets no pass. Its response can't set or clear cookies of other jobs' origins.
"""

import re

from starlette.types import Scope

from access.jobs.proxying import OF_CONNECTION, host_header

# Programs send an API token in it.
TOKEN_HEADER = "x-vedette-token"  # noqa: S105 - no secret
_NOT_PASSED_ON = OF_CONNECTION | {TOKEN_HEADER.encode()}
# It would clear the cookies of all subdomains of the registrable domain.
_NOT_RETURNED = OF_CONNECTION | {b"clear-site-data"}
# Browsers differ in how they read these, all but the tab.
_CONTROL_CHARACTER = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


def host_of(scope: Scope) -> str:
    """Return the host that a request names, in lower case and without its port."""
    return host_header(scope).decode("latin-1").lower().partition(":")[0]


def cookie_values(scope: Scope, cookie: str) -> list[str]:
    """Return all values of a cookie: a script of another job may have set some of them."""
    headers = [value for name, value in scope["headers"] if name == b"cookie"]
    pairs = [pair.partition(b"=") for value in headers for pair in value.split(b";")]
    return [text.decode("latin-1") for name, _, text in pairs if name.strip() == cookie.encode()]


def request_headers(scope: Scope, *, cookie: str, is_https: bool) -> list[tuple[bytes, bytes]]:
    """Return the headers for the job: all but those of this connection and of the pass."""
    headers = []
    for name, value in scope["headers"]:
        text = _without_cookie(value, cookie) if name == b"cookie" else value
        if name not in _NOT_PASSED_ON and text:
            headers.append((name, text))
    proto = b"https" if is_https else b"http"
    host = (b"x-forwarded-host", host_header(scope))
    return [*headers, (b"x-forwarded-proto", proto), host]


def response_headers(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers of a job's response for the user's browser."""
    returned = []
    for name, value in headers:
        is_cookie = name.lower() == b"set-cookie"
        text = _own_cookie(value) if is_cookie else value
        if name.lower() not in _NOT_RETURNED and not (is_cookie and not text):
            returned.append((name.lower(), text))
    return returned


def _own_cookie(value: bytes) -> bytes:
    """Return a cookie without the attributes that give it to other jobs' origins; or nothing.

    Source: RFC 6265bis, section 5.6: quotes do not protect a semicolon, spaces and tabs around
    names do not count, and nor does case.
    """
    if _CONTROL_CHARACTER.search(value):
        return b""
    pair, *attributes = value.split(b";")
    names = [attribute.partition(b"=")[0].strip(b" \t").lower() for attribute in attributes]
    own = [text for name, text in zip(names, attributes, strict=True) if name != b"domain"]
    return b";".join([pair, *own])


def _without_cookie(value: bytes, cookie: str) -> bytes:
    pairs = [pair.strip() for pair in value.split(b";")]
    return b"; ".join(pair for pair in pairs if pair.partition(b"=")[0].strip() != cookie.encode())
