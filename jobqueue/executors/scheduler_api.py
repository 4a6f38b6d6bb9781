"""HTTP to the API of a scheduler or Mesos agent: credentials, timeouts, errors in plain words.

Only reads are repeated after a broken connection. A write whose answer is lost may have happened:
that is an `UncertainError`, and the caller looks before it writes again.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import requests

from jobqueue.executors.base import (
    ConflictError,
    ExecutorError,
    ExecutorUnavailableError,
    InvalidError,
    NotFoundError,
    UncertainError,
)
from jobqueue.executors.settings import ServerSettings

READ_TRIES = 2
ERROR, SERVER_ERROR = 400, 500
UNAUTHORIZED = frozenset({401, 403})
NOT_FOUND, CONFLICT = 404, 409
INVALID = frozenset({400, 422})
MAX_ERROR_LENGTH = 500

Params = Mapping[str, str | Sequence[str]]


class SchedulerAPI:
    """One server's API."""

    def __init__(self, name: str, settings: ServerSettings) -> None:
        self.name, self.settings = name, settings
        self._base = settings.url.rstrip("/")
        self._session = requests.Session()
        self._session.headers["Accept"] = "application/json"
        if settings.ca_file is not None:
            self._session.verify = str(settings.ca_file)
        if settings.username:
            password = _read(settings.password_file)
            self._session.auth = (settings.username, password)
        elif settings.token_file is not None:
            self._session.headers["Authorization"] = f"token={_read(settings.token_file)}"

    def get(self, path: str, params: Params | None = None) -> Any:  # noqa: ANN401 - JSON
        """Return the JSON of an answer."""
        return _json(self.request("GET", path, params=params), self.name)

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: object = None,
        data: str | None = None,
    ) -> requests.Response:
        """Send a request and return the answer, whose status is a success.

        Raises:
            NotFoundError, ConflictError, InvalidError: by the status.
            UncertainError: a write may or may not have happened; also for its 5xx.
            ExecutorUnavailableError: the server does not answer, or answers 5xx.
        """
        tries = READ_TRIES if method == "GET" else 1
        while True:
            tries -= 1
            try:
                response = self._session.request(
                    method,
                    f"{self._base}{path}",
                    params=params,
                    json=body,
                    data=data,
                    headers={"Content-Type": "application/json"},
                    timeout=self.settings.timeout_seconds,
                )
                break
            except requests.RequestException as error:
                if tries <= 0:
                    raise self._unreachable(error, method=method) from error
        if response.status_code >= ERROR:
            refusal = self.failure(response)
            if method != "GET" and isinstance(refusal, ExecutorUnavailableError):
                is_refused = response.status_code < SERVER_ERROR
                raise refusal if is_refused else UncertainError(str(refusal))
            raise refusal
        if response.request.method != method:
            raise ExecutorError(f"{self.name} redirects writes to {response.url}; use that url.")
        return response

    def stream(self, path: str, params: Params) -> requests.Response:
        """Open a stream of events."""
        timeout_seconds = self.settings.timeout_seconds
        try:
            response = self._session.get(
                f"{self._base}{path}",
                params=params,
                stream=True,
                headers={"Accept": "text/event-stream"},
                timeout=(timeout_seconds, None),
            )
        except requests.RequestException as error:
            raise self._unreachable(error, method="GET") from error
        if response.status_code >= ERROR:
            response.close()
            raise self.failure(response)
        return response

    def failure(self, response: requests.Response) -> ExecutorError:
        """Return the error that an answer means."""
        status, text = response.status_code, error_text(response)
        where = f"{self.name} at {self._base}"
        if status in UNAUTHORIZED and "deployments" not in text:
            return ExecutorUnavailableError(
                f"{where} refuses the credentials ({status}): {text}. Correct them in agent.toml."
            )
        kinds: dict[int, type[ExecutorError]] = {NOT_FOUND: NotFoundError, CONFLICT: ConflictError}
        kinds |= dict.fromkeys(INVALID, InvalidError)
        if status >= SERVER_ERROR:
            kinds[status] = ExecutorUnavailableError
        return kinds.get(status, ExecutorError)(f"{where} answered {status}: {text}")

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def _unreachable(self, error: Exception, *, method: str) -> ExecutorUnavailableError:
        message = f"{self.name} at {self._base} does not answer: {error}"
        is_unsent = isinstance(error, (requests.ConnectTimeout, requests.exceptions.SSLError))
        is_unsent = is_unsent or "NewConnectionError" in repr(error)
        if method == "GET" or is_unsent:
            return ExecutorUnavailableError(message)
        return UncertainError(message)


def error_text(response: requests.Response) -> str:
    """Return what an error's body says, with all details."""
    try:
        body = response.json()
    except ValueError:
        return (response.text.strip() or response.reason or "no message")[:MAX_ERROR_LENGTH]
    if not isinstance(body, dict):
        return str(body)[:MAX_ERROR_LENGTH]
    text = str(body.get("message", "")).rstrip(".") or response.reason
    details = body.get("details")
    if isinstance(details, list):
        errors = [
            f"{detail.get('path', '')} {', '.join(detail.get('errors', []))}"
            for detail in details
            if isinstance(detail, dict)
        ]
        text += f" ({'; '.join(errors)})" if errors else ""
    return text[:MAX_ERROR_LENGTH]


def _json(response: requests.Response, name: str) -> Any:  # noqa: ANN401 - JSON
    try:
        return response.json()
    except ValueError as error:
        raise ExecutorUnavailableError(
            f"{name} at {response.url} does not answer with JSON. Check the url."
        ) from error


def _read(path: Path | None) -> str:
    return path.read_text(encoding="utf-8").strip() if path is not None else ""
