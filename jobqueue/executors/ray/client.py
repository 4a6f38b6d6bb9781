"""HTTP to the dashboard of a Ray cluster: the Jobs API, the state API and the log of a job.

Errors of Ray are texts, most of them with a traceback: the last line says what is wrong.
Source: the OpenAPI description of the Jobs API, and `ray/dashboard/modules` of Ray 2.9 to 2.60.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import requests
from requests.auth import AuthBase

from jobqueue.executors.base import (
    ConflictError,
    ExecutorError,
    ExecutorUnavailableError,
    InvalidError,
)
from jobqueue.executors.scheduler_api import ERROR, MAX_ERROR_LENGTH, Params, SchedulerAPI
from jobqueue.executors.settings import RaySettings, ServerSettings

OLDEST = (2, 9)
# From here on, following a log does not block the process that others' requests go to.
FOLLOWS_FROM = (2, 38)
# From here on, the state API gives a file as it is.
RAW_LOGS_FROM = (2, 47)
CHUNK_BYTES = 64 * 1024
# Most nodes and actors that the state API lists.
MAX_LISTED = 10_000
_ERROR_NAME = re.compile(r"^(?:[\w.]+(?:Error|Exception|Exit)): ")
Answer = dict[str, Any]


class RayAPI(SchedulerAPI):
    """The API of one dashboard."""

    def __init__(self, settings: RaySettings) -> None:
        server = ServerSettings(
            url=settings.url, ca_file=settings.ca_file, timeout_seconds=settings.timeout_seconds
        )
        super().__init__("Ray", server)
        self._session.headers.update(settings.headers)
        if settings.token_file is not None:
            self._session.auth = _Token(settings.token_file)
        self.version: tuple[int, ...] = ()
        self.version_text = ""

    def session_name(self) -> str:
        """Return the name of the cluster's session, which a restart of its head changes.

        Raises:
            ExecutorUnavailableError: it does not answer, or its version is too old.
        """
        answer = self.get("/api/version")
        self.version_text = str(answer.get("ray_version", ""))
        self.version = release_of(self.version_text)
        if self.version < OLDEST:
            raise ExecutorUnavailableError(
                f"Ray at {self.settings.url} says that it is Ray {self.version_text or 'unknown'}, "
                "which is too old: 2.9 or newer is needed. Update the cluster."
            )
        # Early releases do not name it; a restart is then seen by its jobs alone.
        return str(answer.get("session_name") or self.version_text)

    def jobs(self) -> list[Answer]:
        """Return the jobs of all users."""
        return [job for job in self.get("/api/jobs/") if job.get("submission_id")]

    def submit(self, job: Answer) -> None:
        """Submit a job; raises `ConflictError` if the cluster has its submission id."""
        self.request("POST", "/api/jobs/", body=job)

    def stop(self, submission_id: str) -> None:
        """Order a job to stop: what waits in the queue ends when it would start."""
        self.request("POST", f"/api/jobs/{quote(submission_id)}/stop")

    def delete(self, submission_id: str) -> None:
        """Delete an ended job."""
        self.request("DELETE", f"/api/jobs/{quote(submission_id)}")

    def state(self, kind: str, params: Params | None = None) -> list[Answer]:
        """Return what the state API lists: `nodes` or `actors`."""
        params = {"detail": "true", "limit": str(MAX_LISTED), **(params or {})}
        answer = self.get(f"/api/v0/{kind}", params)
        return list(answer["data"]["result"]["result"])

    def output(self, job: Answer) -> Iterator[bytes]:
        """Yield the whole output of a job, whose newlines are all `\\n`, as when it is followed."""
        if self.version < RAW_LOGS_FROM:
            yield str(self.get(f"/api/jobs/{quote(job['submission_id'])}/logs")["logs"]).encode()
            return
        params = {
            "node_id": job["driver_node_id"],
            "filename": f"job-driver-{job['submission_id']}.log",
            "lines": "-1",
        }
        try:
            with self._session.get(
                f"{self._base}/api/v0/logs/file",
                params=params,
                stream=True,
                timeout=self.settings.timeout_seconds,
            ) as response:
                if response.status_code >= ERROR:
                    raise self.failure(response)
                yield from _with_newlines(response.iter_content(CHUNK_BYTES))
        except requests.RequestException as error:
            raise self._unreachable(error, method="GET") from error

    def failure(self, response: requests.Response) -> ExecutorError:
        """Return the error that an answer means: refusals come as 500 as well."""
        text = response.text
        words = last_words(text)
        if "already exists" in words:
            return ConflictError(words)
        if "status code 400" in text or (response.status_code == requests.codes.bad_request):
            return InvalidError(f"Ray refuses the job: {words}")
        error = super().failure(response)
        where = f"Ray at {self._base} answered {response.status_code}: {words}"
        return error if response.status_code < requests.codes.server_error else type(error)(where)


class _Token(AuthBase):
    """The token of a file, read for each request: it may be replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers.update(token_header(self._path))
        return request


def token_header(path: Path | None) -> dict[str, str]:
    """Return the header with the token of a file."""
    if path is None:
        return {}
    try:
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ExecutorUnavailableError(f"{path} can't be read: {error.strerror}") from error
    return {"Authorization": f"Bearer {token}"}


def release_of(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, such as (2, 60) of `2.60.0`."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0,)


def last_words(text: str) -> str:
    """Return what a text of Ray says, without its traceback."""
    text = text.strip()
    if "Full traceback:" in text:
        text = text.split("Full traceback:")[0].strip().removesuffix(".")
    elif "Traceback (most recent call last)" in text:
        lines = [line.strip() for line in text.splitlines() if line.strip(" .")]
        text = _ERROR_NAME.sub("", lines[-1])
    return text[:MAX_ERROR_LENGTH]


def _with_newlines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield text with the newlines that Python reads: a `\\r` at the end may belong to a `\\n`."""
    rest = b""
    for chunk in chunks:
        text = rest + chunk
        rest = b"\r" if text.endswith(b"\r") else b""
        text = text.removesuffix(b"\r")
        yield text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if rest:
        yield b"\n"
