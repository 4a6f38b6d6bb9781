"""Requests to a portal, which wait while it restarts or its database is busy.

A request that may have arrived is sent again only if that does no harm: reads, changes to a stated
value, and creations with an `Idempotency-Key`, which the portal executes once.
"""

import logging
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import requests
from urllib3.exceptions import NameResolutionError

from core.errors import DatabaseUnavailableError, InvalidInputError, UnavailableError
from vedette.errors import PortalError, RestartingError

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 30
CHUNK_BYTES = 64 * 1024
# A restart of a minute. A creation that the portal was killed in is executed by another request
# with its key after a minute, too.
RETRY_SECONDS = 90.0
RETRY_VARIABLE = "VEDETTE_RETRY_SECONDS"
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.25, 5.0
KEY_HEADER = "Idempotency-Key"
NOT_FOUND = "not_found"
# Errors after which the same request may succeed in a moment.
_TEMPORARY = frozenset({"idempotency_key_in_flight", DatabaseUnavailableError.default_code})
# A proxy returns these while no portal is behind it; the portal's own errors are JSON.
_PROXY_STATUSES = frozenset({502, 503, 504})


class Connection:
    """A session with one portal.

    Args:
        token: an API token.
        retry_seconds: how long a request is sent again while the portal does not answer; by
            default `VEDETTE_RETRY_SECONDS`, or `RETRY_SECONDS`.

    Raises:
        InvalidInputError: the variable is no number.
    """

    def __init__(self, token: str, *, retry_seconds: float | None) -> None:
        self._retry_seconds = _default_seconds() if retry_seconds is None else retry_seconds
        self.headers = {"Authorization": f"Bearer {token}"}
        self._session = requests.Session()
        self._session.headers.update(self.headers)

    def close(self) -> None:
        """Close it."""
        self._session.close()

    def send(
        self,
        method: str,
        url: str,
        **arguments: Any,  # noqa: ANN401 - those of requests
    ) -> requests.Response:
        """Send a request, again while the portal restarts or is busy, and return the response.

        Raises:
            UnavailableError: no response.
            PortalError: an error response.
        """
        if method == "POST":
            headers = {KEY_HEADER: str(uuid.uuid4()), **arguments.pop("headers", {})}
            arguments["headers"] = headers
        until, pause_seconds = time.monotonic() + self._retry_seconds, FIRST_PAUSE_SECONDS
        is_repeated = False
        while True:
            try:
                response = self.send_once(method, url, **arguments)
            except (RestartingError, PortalError) as error:
                if method == "DELETE" and is_repeated and error.code == NOT_FOUND:
                    return requests.Response()  # an earlier request has deleted it
                is_temporary = isinstance(error, RestartingError) or error.code in _TEMPORARY
                if not is_temporary or time.monotonic() + pause_seconds > until:
                    raise
                if not is_repeated:
                    duration = f"{self._retry_seconds:.0f} s"
                    log.warning("%s Trying again for up to %s.", error.message, duration)
                is_repeated = True
                time.sleep(pause_seconds)
                pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)
            else:
                if is_repeated:
                    log.warning("The portal answers again.")
                return response

    def send_once(
        self,
        method: str,
        url: str,
        **arguments: Any,  # noqa: ANN401 - those of requests
    ) -> requests.Response:
        """Send a request and return the response; raises as `send` does."""
        return respond(self._session, method, url, **arguments)


def _default_seconds() -> float:
    text = os.environ.get(RETRY_VARIABLE, str(RETRY_SECONDS))
    try:
        return max(0.0, float(text))
    except ValueError:
        raise InvalidInputError(f"{RETRY_VARIABLE} is {text!r}; enter seconds, or 0.") from None


def fetch_signed(url: str) -> Iterator[bytes]:
    """Yield what a signed address of a bucket has, without the portal's token.

    Raises:
        UnavailableError: the bucket does not answer, or refuses.
    """
    host = url.partition("?")[0]
    try:
        with requests.get(url, stream=True, timeout=TIMEOUT_SECONDS) as response:
            if not response.ok:
                raise UnavailableError(f"The bucket answered {response.status_code} for {host}.")
            yield from response.iter_content(CHUNK_BYTES)
    except requests.RequestException as error:
        raise UnavailableError(f"{host} does not answer ({type(error).__name__}).") from error


def call_portal(session: requests.Session, method: str, url: str, **arguments: Any) -> Any:  # noqa: ANN401 - JSON
    """Send one request and return its JSON; raises as `Connection.send` does."""
    response = respond(session, method, url, **arguments)
    return response.json() if response.content else None


def respond(
    session: requests.Session,
    method: str,
    url: str,
    **arguments: Any,  # noqa: ANN401 - those of requests
) -> requests.Response:
    """Send one request and return the response; raises as `Connection.send` does."""
    try:
        response = session.request(method, url, **{"timeout": TIMEOUT_SECONDS, **arguments})
    except requests.RequestException as error:
        kind = RestartingError if _may_pass(error) else UnavailableError
        raise kind(f"{url} does not answer ({type(error).__name__}).") from error
    if not response.ok:
        raise _error_of(response)
    return response


def _may_pass(error: requests.RequestException) -> bool:
    """Return whether a restart explains that a connection was refused, or broke."""
    if isinstance(error, requests.exceptions.SSLError):
        return False
    reasons = [getattr(part, "reason", None) for part in error.args]
    if any(isinstance(reason, NameResolutionError) for reason in reasons):
        return False
    return isinstance(error, (requests.ConnectionError, requests.exceptions.ChunkedEncodingError))


def _error_of(response: requests.Response) -> PortalError | RestartingError:
    try:
        body = response.json()
    except ValueError:
        body = {}
        if response.status_code in _PROXY_STATUSES:
            return RestartingError(f"{response.url} answered {response.status_code}.")
    message = body.get("message") or f"{response.url} answered {response.status_code}."
    return PortalError(message, code=body.get("code"), errors=_flat(body.get("errors") or {}))


def _flat(errors: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the errors of nested fields by the innermost field name; those of lists by path."""
    flat: dict[str, list[str]] = {}
    for key, value in errors.items():
        if isinstance(value, Mapping) and any(inner.isdigit() for inner in value):
            for number, nested in value.items():
                item_errors = _flat(nested) if isinstance(nested, Mapping) else {"": nested}
                flat |= {
                    f"{key}.{number}.{name}".rstrip("."): texts
                    for name, texts in item_errors.items()
                }
        elif isinstance(value, Mapping):
            flat |= _flat(value)
        else:
            flat[key] = [str(text) for text in (value if isinstance(value, list) else [value])]
    return flat
