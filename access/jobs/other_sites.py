"""Requests that pages of other sites send with a user's cookie, which must not act for the user.

Browsers name the page that sends a request: by its origin, and by Sec-Fetch-Site, which no script
can change. Subdomains of one domain are the same site to browsers and their cookies, so that only
the same origin counts here.

Source: https://www.w3.org/TR/fetch-metadata/, https://web.dev/articles/fetch-metadata.
"""

from starlette.requests import HTTPConnection

from core.errors import ForbiddenError

_SAFE_METHODS = frozenset({"GET", "HEAD"})


def refuse_other_sites(connection: HTTPConnection, *, is_https: bool) -> None:
    """Accept requests of the own origin, of programs, and links that a user follows to it.

    A WebSocket must have the own origin, scheme included.

    Raises:
        ForbiddenError: a page of another origin sent the request; code `other_site`.
    """
    headers, is_websocket = connection.headers, connection.scope["type"] == "websocket"
    own_origin = f"{'https' if is_https else 'http'}://{headers.get('host', '')}"
    origins = set(headers.getlist("origin"))
    is_foreign = bool(origins - {own_origin}) or (is_websocket and not origins)
    site = headers.get("sec-fetch-site", "same-origin")
    if is_foreign or (site != "same-origin" and not _is_visit(connection)):
        raise ForbiddenError(
            "A page of another site sent this request. Open the page itself, in a tab of its own.",
            code="other_site",
        )


def _is_visit(connection: HTTPConnection) -> bool:
    """Return whether a user opens a page in a tab: by a link, a bookmark or its address."""
    headers = connection.headers
    is_page = headers.get("sec-fetch-mode") == "navigate"
    # Not in a frame or an object of another page, which could trick the user into clicks.
    is_tab = headers.get("sec-fetch-dest") == "document"
    return is_page and is_tab and connection.scope.get("method") in _SAFE_METHODS
