"""Slurm by slurmrestd, over HTTP or a Unix socket.

The version of its API is the newest that both know: `/openapi/v3` lists those of the server.
Versions from v0.0.39 on give numbers as `{"set": true, "number": 1}` and states as lists.

Source: the OpenAPI documents of slurmrestd 22.05 (v0.0.36 to v0.0.38). v0.0.38 is tested with
a real slurmrestd; newer versions follow what is published of them, and were not tried.
"""

import math
import re
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter

from core.clock import NS_PER_SECOND
from jobqueue.executors.base import (
    AttemptUsage,
    ExecutorError,
    ExecutorUnavailableError,
    InvalidError,
    UncertainError,
)
from jobqueue.executors.settings import SlurmSettings
from jobqueue.executors.slurm.api import (
    ClusterState,
    JobOptions,
    SlurmJob,
    check_version,
    refusal_of,
    unanswered,
)
from jobqueue.executors.slurm.cluster_text import MEBIBYTE, gpus_of, node_state
from protocol.clusters import MAX_NODES, ClusterNode, ClusterQueue

VERSIONS = range(36, 44)
# From here on, numbers are structures and environments are lists.
STRUCTURED = 39
MAX_ANSWER_BYTES = 256 * 2**20
_PATH = re.compile(r"^/slurm/v0\.0\.(\d+)/")
_UNAUTHORIZED = frozenset({401, 403})


class SlurmREST:
    """slurmrestd, with a token that is read for each request."""

    def __init__(self, settings: SlurmSettings) -> None:
        self._settings = settings
        self._session = requests.Session()
        self._base = settings.url.rstrip("/")
        if settings.url.startswith("unix:"):
            self._session.mount("http://slurm", _SocketAdapter(urlsplit(settings.url).path))
            self._base = "http://slurm"
        self._version: int | None = None

    def submit(self, options: JobOptions) -> int:
        """Submit a script."""
        job = dict(_job_fields(options, is_structured=self._api_version() >= STRUCTURED))
        answer = self._ask("POST", "job/submit", {"script": options.script, "job": job})
        job_id = answer.get("job_id") or (answer.get("result") or {}).get("job_id")
        if not isinstance(job_id, int):
            raise UncertainError(f"slurmrestd answered without the job's id: {str(answer)[:200]}")
        return job_id

    def jobs(self) -> list[SlurmJob]:
        """Return the jobs of this user: slurmrestd gives those of all."""
        user = self._settings.user
        return [
            _job(job)
            for job in self._ask("GET", "jobs").get("jobs", [])
            if not user or job.get("user_name") == user
        ]

    def ended_jobs(self, job_ids: Collection[int]) -> list[SlurmJob]:
        """Return jobs from the accounting, one request each: slurmrestd has no list of ids."""
        jobs: list[SlurmJob] = []
        for job_id in job_ids:
            answer = self._ask("GET", f"job/{job_id}", service="slurmdb")
            jobs += [_accounted(job) for job in answer.get("jobs", [])]
        return jobs

    def signal(self, job_id: int, name: str) -> None:
        """Send a signal to all processes of a job."""
        self._kill(job_id, {"signal": name, "flags": "FULL_JOB"})

    def cancel(self, job_id: int) -> None:
        """Cancel a job."""
        self._kill(job_id, {})

    def _kill(self, job_id: int, params: dict[str, str]) -> None:
        if self._api_version() < STRUCTURED:
            params.pop("flags", None)
        try:
            self._ask("DELETE", f"job/{job_id}", params=params)
        except InvalidError as error:
            if "invalid job id" not in str(error).lower() and "complet" not in str(error).lower():
                raise

    def cluster(self) -> ClusterState:
        """Return nodes, partitions and version."""
        answer = self._ask("GET", "ping")
        if not any(_is_up(ping) for ping in answer.get("pings", [])):
            raise ExecutorUnavailableError("slurmrestd answers, but slurmctld does not.")
        meta = answer.get("meta") or {}
        slurm = meta.get("Slurm") or meta.get("slurm") or {}
        nodes = [_node(node) for node in self._ask("GET", "nodes").get("nodes", [])]
        queues = [_queue(part) for part in self._ask("GET", "partitions").get("partitions", [])]
        statistics = self._ask("GET", "diag").get("statistics") or {}
        return ClusterState(
            version=check_version(str(slurm.get("release", ""))),
            name=str(slurm.get("cluster", "")),
            waiting_jobs=_number(statistics.get("jobs_pending")) or 0,
            nodes=nodes[:MAX_NODES],
            queues=queues,
        )

    def usage(self, job_ids: Sequence[int]) -> Mapping[int, tuple[float, AttemptUsage]]:
        """Return nothing: slurmrestd does not tell."""
        del job_ids
        return {}

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def _api_version(self) -> int:
        """Return the newest version of the API that both sides know."""
        if self._version is None:
            paths = self._request("GET", "/openapi/v3").get("paths") or {}
            offered = {int(match[1]) for path in paths if (match := _PATH.match(path))}
            usable = offered & set(VERSIONS)
            if not usable:
                versions = ", ".join(f"v0.0.{number}" for number in sorted(offered)) or "none"
                raise ExecutorUnavailableError(
                    f"slurmrestd offers {versions}; Vedette knows v0.0.{VERSIONS[0]} to "
                    f'v0.0.{VERSIONS[-1]}. Load one of them, or set api = "commands".'
                )
            self._version = max(usable)
        return self._version

    def _ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        params: Mapping[str, str] | None = None,
        service: str = "slurm",
    ) -> dict[str, Any]:
        """Return an answer without errors."""
        full_path = f"/{service}/v0.0.{self._api_version()}/{path}"
        answer = self._request(method, full_path, body, params=params)
        errors = answer.get("errors") or []
        if errors:
            text = "; ".join(map(_error_text, errors))
            raise refusal_of(text) if method != "GET" else unanswered("slurmrestd", text)
        return answer

    def _request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        params: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        try:
            response = self._session.request(
                method,
                f"{self._base}{path}",
                json=body,
                params=params,
                headers=self._headers(),
                timeout=self._settings.timeout_seconds,
                allow_redirects=False,
            )
        except requests.RequestException as error:
            text = f"slurmrestd at {self._settings.url} does not answer: {error}"
            is_sent = method == "POST" and "NewConnectionError" not in repr(error)
            raise (UncertainError if is_sent else ExecutorUnavailableError)(text) from error
        if response.status_code in _UNAUTHORIZED:
            raise ExecutorUnavailableError(
                f"slurmrestd at {self._settings.url} refuses the token ({response.status_code}): "
                "renew the one in token_file."
            )
        try:
            answer = response.json()
        except ValueError as error:
            self._version = None  # it may have been updated
            raise ExecutorUnavailableError(
                f"slurmrestd at {self._settings.url} answered {response.status_code}: "
                f"{response.text[:200]}"
            ) from error
        if not isinstance(answer, dict):
            raise ExecutorError(f"slurmrestd answered {str(answer)[:200]}.")
        return answer

    def _headers(self) -> dict[str, str]:
        path = self._settings.token_file
        headers = {"Accept": "application/json"}
        if path is not None:
            try:
                text = path.read_text(encoding="ascii").strip()
            except (OSError, ValueError) as error:
                raise ExecutorUnavailableError(f"{path} can't be read: {error}") from error
            headers["X-SLURM-USER-TOKEN"] = text.removeprefix("SLURM_JWT=")
        if self._settings.user:
            headers["X-SLURM-USER-NAME"] = self._settings.user
        return headers


class _SocketAdapter(HTTPAdapter):
    """Sends requests to a Unix socket."""

    def __init__(self, path: str) -> None:
        self._path = path
        super().__init__()

    def get_connection_with_tls_context(self, *_: object, **__: object) -> "_SocketPool":
        return _SocketPool(self._path)

    def get_connection(self, *_: object, **__: object) -> "_SocketPool":
        return _SocketPool(self._path)


class _SocketPool(urllib3.HTTPConnectionPool):
    def __init__(self, path: str) -> None:
        self._path = path
        super().__init__("slurm")

    def _new_conn(self) -> Any:  # noqa: ANN401 - of urllib3's own kind
        connection: Any = super()._new_conn()

        def connect() -> socket.socket:
            opened = socket.socket(socket.AF_UNIX)
            opened.settimeout(30)
            opened.connect(self._path)
            return opened

        connection._new_conn = connect  # noqa: SLF001 - as urllib3's own subclasses do
        return connection


def _job_fields(options: JobOptions, *, is_structured: bool) -> Iterator[tuple[str, object]]:
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    as_list = [f"{name}={value}" for name, value in environment.items()]
    yield "environment", as_list if is_structured else environment
    yield "name", options.name
    yield "comment", options.comment
    yield "current_working_directory", str(options.folder)
    yield "standard_output", str(options.stdout)
    yield "standard_error", str(options.stderr)
    yield "standard_input", "/dev/null"
    yield "open_mode", "append"
    yield "requeue", False
    yield "tasks", 1
    yield "cpus_per_task", options.cpus
    yield "memory_per_node", options.memory_mib
    if is_structured:
        yield "minimum_nodes", 1
        yield "maximum_nodes", 1
    else:
        yield "nodes", 1
    if options.time_limit_seconds:
        yield "time_limit", math.ceil(options.time_limit_seconds / 60)
    if options.gres:
        kind = "tres_per_node" if is_structured else "gres"
        prefix = "gres/" if is_structured else ""
        yield kind, ",".join(f"{prefix}{part}" for part in options.gres.split(","))
    for name in ("partition", "account", "qos", "reservation", "dependency"):
        if value := getattr(options, name):
            yield name, value
    if options.constraint:
        yield "constraints", options.constraint
    if options.nice is not None:
        yield "nice", options.nice


def _error_text(error: object) -> str:
    if not isinstance(error, dict):
        return str(error)
    parts = [str(error.get(name)) for name in ("error", "description") if error.get(name)]
    return ": ".join(dict.fromkeys(parts)) or str(error)


def _number(value: object) -> int | None:
    """Return a number of either form; None is not set."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") else None
    return int(value) if isinstance(value, (int, float)) else None


def _words(*values: object) -> list[str]:
    return [
        str(word).upper()
        for value in values
        for word in (value if isinstance(value, list) else [value])
        if word
    ]


def _ns(value: object) -> int | None:
    seconds = _number(value)
    return seconds * NS_PER_SECOND if seconds else None


def _status(value: object) -> tuple[int, int]:
    """Return exit code and signal of a wait status, or of a structure."""
    if isinstance(value, dict) and "return_code" in value:
        # The number of a signal has its name since v0.0.36, and both its parts in a structure.
        of_signal = value.get("signal") or {}
        number = of_signal.get("signal_id", of_signal.get("id")) or 0
        return _number(value["return_code"]) or 0, _number(number) or 0
    status = _number(value) or 0
    return status >> 8, status & 0x7F


def _job(job: Mapping[str, Any]) -> SlurmJob:
    return SlurmJob(
        job_id=int(job["job_id"]),
        name=str(job.get("name", "")),
        state=(_words(job.get("job_state")) or ["UNKNOWN"])[0],
        reason=str(job.get("state_reason") or ""),
        node=str(job.get("nodes") or ""),
        exit_status=_status(job.get("exit_code")),
        restarts=_number(job.get("restart_cnt")) or 0,
        started_at_ns=_ns(job.get("start_time")),
        ended_at_ns=_ns(job.get("end_time")),
    )


def _accounted(job: Mapping[str, Any]) -> SlurmJob:
    state, times = job.get("state") or {}, job.get("time") or {}
    return SlurmJob(
        job_id=int(job["job_id"]),
        name=str(job.get("name", "")),
        state=(_words(state.get("current")) or ["UNKNOWN"])[0],
        reason=str(state.get("reason") or ""),
        node=str(job.get("nodes") or ""),
        exit_status=_status(job.get("exit_code")),
        cancelled_by=str(job.get("kill_request_user") or ""),
        started_at_ns=_ns(times.get("start")),
        ended_at_ns=_ns(times.get("end")),
    )


def _is_up(ping: Mapping[str, Any]) -> bool:
    return ping.get("ping") == "UP" or ping.get("pinged") == "UP" or bool(ping.get("responding"))


def _node(node: Mapping[str, Any]) -> ClusterNode:
    words = _words(node.get("state"), node.get("state_flags"))
    state, why = node_state(words, str(node.get("reason") or ""))
    gpus, model = gpus_of(str(node.get("gres") or ""))
    return ClusterNode(
        name=str(node["name"]),
        state=state,
        reason=why,
        queues=[str(name) for name in node.get("partitions") or []],
        cpus=_number(node.get("cpus")) or 0,
        memory_bytes=(_number(node.get("real_memory")) or 0) * MEBIBYTE,
        gpus=gpus,
        gpu_model=model,
        allocated_cpus=_number(node.get("alloc_cpus")) or 0,
        allocated_memory_bytes=(_number(node.get("alloc_memory")) or 0) * MEBIBYTE,
        allocated_gpus=gpus_of(str(node.get("gres_used") or ""))[0],
    )


def _queue(part: Mapping[str, Any]) -> ClusterQueue:
    states = _words(part.get("state"), (part.get("partition") or {}).get("state"))
    limit = part.get("max_time_limit", (part.get("maximums") or {}).get("time"))
    minutes = _number(limit) or 0
    return ClusterQueue(
        name=str(part["name"]),
        is_default="DEFAULT" in _words(part.get("flags")),
        is_open="UP" in states,
        time_limit_seconds=max(0, minutes) * 60,
    )
