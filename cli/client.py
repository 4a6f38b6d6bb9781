"""The command line's connection to a portal's REST API, and where its token is kept.

`VEDETTE_URL` and `VEDETTE_TOKEN` win over the credentials file that `vedette login` writes.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from core.errors import UnauthenticatedError, UnavailableError, VedetteError

TIMEOUT_SECONDS = 30
HTTP_ERROR = 400


class PortalError(VedetteError):
    """The portal answered with an error; carries its message and its field faults."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Where the portal is, and the API token to show it."""

    url: str
    token: str


def credentials_path() -> Path:
    """Return the file that keeps the token, in the user's configuration folder."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "vedette" / "credentials.json"


def save_credentials(credentials: Credentials) -> Path:
    """Write the credentials, readable by this user only; return where they are."""
    path = credentials_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(json.dumps({"url": credentials.url, "token": credentials.token}))
    return path


def load_credentials(environ: Mapping[str, str] | None = None) -> Credentials:
    """Return the credentials of the environment or of the file.

    Raises:
        UnauthenticatedError: nobody signed in yet; says how to.
    """
    environ = os.environ if environ is None else environ
    saved: dict[str, str] = {}
    if credentials_path().exists():
        saved = json.loads(credentials_path().read_text())
    url = environ.get("VEDETTE_URL", saved.get("url", ""))
    token = environ.get("VEDETTE_TOKEN", saved.get("token", ""))
    if not url or not token:
        raise UnauthenticatedError("You are not signed in. Run: vedette login URL")
    return Credentials(url=url.rstrip("/"), token=token)


class PortalClient:
    """Calls the REST API and turns its error answers into `PortalError`."""

    def __init__(self, credentials: Credentials) -> None:
        self._base = f"{credentials.url}/api/v1"
        self._session = requests.Session()
        self._session.headers["Authorization"] = f"Bearer {credentials.token}"

    def get(self, path: str, **params: object) -> Any:  # noqa: ANN401 - JSON
        """GET a path below /api/v1 and return its JSON."""
        kept = {key: str(value) for key, value in params.items() if value is not None}
        return self._call("GET", path, params=kept)

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401 - JSON
        """POST JSON to a path below /api/v1 and return the answer's JSON."""
        return self._call("POST", path, json=body or {})

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def _call(self, method: str, path: str, **arguments: Any) -> Any:  # noqa: ANN401 - JSON
        return call_portal(self._session, method, f"{self._base}{path}", **arguments)


def call_portal(session: requests.Session, method: str, url: str, **arguments: Any) -> Any:  # noqa: ANN401 - JSON
    """Send one request and return its JSON.

    Raises:
        UnavailableError: the portal does not answer.
        PortalError: it answered with an error.
    """
    try:
        reply = session.request(method, url, timeout=TIMEOUT_SECONDS, **arguments)
    except requests.RequestException as error:
        raise UnavailableError(f"{url} does not answer ({type(error).__name__}).") from error
    if reply.status_code >= HTTP_ERROR:
        raise _error_of(reply)
    return reply.json() if reply.content else None


def _error_of(reply: requests.Response) -> PortalError:
    try:
        body = reply.json()
    except ValueError:
        body = {}
    message = body.get("message") or f"{reply.url} answered {reply.status_code}"
    faults = body.get("errors") or {}
    errors = {key: [str(fault) for fault in value] for key, value in _flat(faults).items()}
    return PortalError(message, code=body.get("code"), errors=errors)


def _flat(faults: Mapping[str, Any]) -> dict[str, list[Any]]:
    flat: dict[str, list[Any]] = {}
    for key, value in faults.items():
        if isinstance(value, Mapping):
            flat |= _flat(value)
        else:
            flat[key] = value if isinstance(value, list) else [value]
    return flat
