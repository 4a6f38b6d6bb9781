"""`vedette.Client`: the REST API of a portal for Python programs, and for the `vedette` command.

from vedette import Client

with Client() as client:
    job = client.submit("acme/train:1", command=["python", "train.py"], gpus=2)
    for text in client.logs(job.id, follow=True):
        print(text, end="")
    client.result(job.id)
"""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Unpack
from urllib.parse import quote

import msgspec
import requests

from core.errors import InvalidInputError
from core.spec import spec_fields
from protocol.job_spec import JobRequest
from vedette.connection import fetch_signed
from vedette.errors import JobTimeoutError
from vedette.events import SILENCE_SECONDS, follow_events
from vedette.frames import FrameLibrary, chosen_library, to_frame
from vedette.job_fields import JobFields
from vedette.jobs import Job, JobFailedError, LogLine
from vedette.rest import COPY_SECONDS, PAGE_SIZE, RESTClient

if TYPE_CHECKING:
    from vedette.exec import Exec, Size

POLL_SECONDS = 1.0
LOG_PAGE_SIZE = 500
FOLLOW_SECONDS = 2.0
MAX_SEEN = 5000
MAX_NAME_LENGTH = 100
_MIN_ID_LENGTH = 4
# The fields that a copy of a job takes from it, where they are set.
_COPIED = {
    name: field.default
    for name, field in spec_fields(JobRequest).items()
    if name in Job.__struct_fields__ and name not in {"image", "env", "appliance_id"}
}


class Client(RESTClient):
    """Calls the REST API of a portal; close it, or use it as a context manager.

    A job is named by its ID, the beginning or the end of one, or its name: then it is the newest
    job with that name. Every call may raise `UnavailableError` (no response) and `PortalError`.

    Args:
        url: of the portal, and `token` an API token; by default those of `VEDETTE_URL` and
            `VEDETTE_TOKEN`, or of `vedette login`.
        retry_seconds: how long requests are sent again while the portal does not answer, as when
            it restarts; by default `VEDETTE_RETRY_SECONDS`, or 90.

    Raises:
        UnauthenticatedError: there are no credentials.
    """

    def submit(self, image: str = "", **fields: Unpack[JobFields]) -> Job:
        """Submit a job; without a name it gets that of its image, or else of its program.

        Without an image it runs in the environment of a cluster's nodes.
        """
        program = "".join(fields.get("command", ())[:1])
        name = fields.get("name") or _last(image).partition("@")[0].partition(":")[0]
        name = name or _last(program)[:MAX_NAME_LENGTH] or "job"
        return _job(self.post("/jobs", {**fields, "image": image, "name": name}))

    def dry_run(self, image: str = "", **fields: Unpack[JobFields]) -> dict[str, Any]:
        """Return where a job would go and when, and why not elsewhere, without submitting it."""
        body = {**fields, "image": image, "name": fields.get("name") or "dry-run"}
        placement: dict[str, Any] = self.post("/jobs/dry-run", body)
        return placement

    def apply(
        self, jobs: Sequence[Mapping[str, Any]], *, is_dry_run: bool = False
    ) -> list[dict[str, Any]]:
        """Submit the jobs of a file, all or none; a dry run returns where they would go."""
        body = {"jobs": list(jobs), "is_dry_run": is_dry_run}
        rows: list[dict[str, Any]] = self.post("/jobs/apply", body)["items"]
        return rows

    def template(self, name_or_id: str) -> dict[str, Any]:
        """Return a job template; `job` has the fields of a new job."""
        template: dict[str, Any] = self.get(f"/job-templates/{quote(name_or_id, safe='')}")
        return template

    def pending(self, name_or_id: str) -> dict[str, Any]:
        """Return why a job waits, what must free up, and when it is expected to start."""
        explanation: dict[str, Any] = self.get(f"/jobs/{self.job(name_or_id).id}/pending")
        return explanation

    def framework(self, name_or_id: str) -> dict[str, Any]:
        """Return the members of a job's gang, and the variables that its framework gets."""
        described: dict[str, Any] = self.get(f"/jobs/{self.job(name_or_id).id}/framework")
        return described

    def jobs(self, *, limit: int | None = None, **filters: str | None) -> Iterator[Job]:
        """Yield the jobs, newest first; `filters` as those of `GET /jobs`, such as `state`."""
        pages = self._continued_pages("/jobs", limit, page_size=PAGE_SIZE, **filters)
        yield from map(_job, pages)

    def job(self, name_or_id: str) -> Job:
        """Return a job.

        Raises:
            InvalidInputError: there is none, or several IDs begin or end like this.
        """
        try:
            return _job(self.get(f"/jobs/{uuid.UUID(name_or_id)}"))
        except ValueError:
            pass
        candidates = self.get("/jobs", search=name_or_id, page_size=PAGE_SIZE)["items"]
        matches = [item for item in candidates if item["name"] == name_or_id][:1]
        if not matches and len(name_or_id) >= _MIN_ID_LENGTH:
            text = name_or_id.lower()
            matches = [
                job for job in candidates if job["id"].startswith(text) or job["id"].endswith(text)
            ]
        if len(matches) > 1:
            listed = ", ".join(f"{job['id']} ({job['name']})" for job in matches[:5])
            raise InvalidInputError(f"{name_or_id!r} is ambiguous: {listed}. Use more of the ID.")
        if not matches:
            raise InvalidInputError(
                f"No job has the name or ID {name_or_id!r}. See: vedette job ls"
            )
        found_id = matches[0]["id"]
        is_whole = matches[0]["kind"] == "service" or matches[0].get("nodes", 1) > 1
        if is_whole and matches[0]["name"] == name_or_id:
            # The first instance stands for its service, the first member for its gang.
            found_id = matches[0]["array_id"] or found_id
        return _job(self.get(f"/jobs/{found_id}"))

    def stop(self, name_or_id: str) -> Job:
        """Stop a running job, or remove a waiting one from the queue."""
        return _job(self.post(f"/jobs/{self.job(name_or_id).id}/stop"))

    def delete_job(self, name_or_id: str) -> Job:
        """Delete an ended job with its attempts, history and logs."""
        job = self.job(name_or_id)
        self.delete(f"/jobs/{job.id}")
        return job

    def stop_array(self, name_or_id: str) -> Job:
        """Stop all tasks of a job's array."""
        return _job(self.post(f"/jobs/{self.job(name_or_id).id}/stop-array"))

    def scale(self, name_or_id: str, instances: int) -> Job:
        """Add instances to a service, or stop some."""
        path = f"/jobs/{self.job(name_or_id).id}/scale"
        return _job(self.post(path, {"instances": instances}))

    def autoscaling(self, name_or_id: str) -> dict[str, Any]:
        """Return how a service scales by itself, and its last decision."""
        status: dict[str, Any] = self.get(f"/jobs/{self.job(name_or_id).id}/autoscaling")
        return status

    def autoscale(self, name_or_id: str, policy: Mapping[str, Any] | None) -> Job:
        """Let a service scale by itself in this way, or with None no longer."""
        path = f"/jobs/{self.job(name_or_id).id}/autoscaling"
        return _job(self.post(f"{path}/remove") if policy is None else self.post(path, policy))

    def update(self, name_or_id: str, **changes: Any) -> Job:  # noqa: ANN401 - fields of a job
        """Update the instances of a service one by one; `changes` are `image` and `JobFields`."""
        return _job(self.post(f"/jobs/{self.job(name_or_id).id}/update", changes))

    def roll_back(self, name_or_id: str) -> Job:
        """Give the instances of a service the values that they had before the latest update."""
        return _job(self.post(f"/jobs/{self.job(name_or_id).id}/rollback"))

    def update_progress(self, name_or_id: str) -> dict[str, Any]:
        """Return the latest update of a service."""
        progress: dict[str, Any] = self.get(f"/jobs/{self.job(name_or_id).id}/update")
        return progress

    def set_priority(self, name_or_id: str, priority: int) -> Job:
        """Change the priority of a job that waits."""
        path = f"/jobs/{self.job(name_or_id).id}/priority"
        return _job(self.post(path, {"priority": priority}))

    def retry(self, name_or_id: str, *, secrets: Mapping[str, str] | None = None) -> Job:
        """Submit a job of yours again, with its secrets; `secrets` replace or add some."""
        return self.clone(name_or_id, secrets=secrets or {})

    def clone(
        self, name_or_id: str, *, image: str | None = None, **changes: Unpack[JobFields]
    ) -> Job:
        """Submit a copy of a job with other fields, and with its secrets if the job is yours."""
        job, secrets = self.job(name_or_id), changes.get("secrets", {})
        env = changes.get("env", job.env)
        body: dict[str, Any] = {
            name: msgspec.to_builtins(value)
            for name, default in _COPIED.items()
            if (value := getattr(job, name)) != default
        }
        body |= {
            "image": job.image if image is None else image,
            "appliance_id": job.requested_appliance_id,
            "secrets_from": job.id if job.secret_names else None,
            **changes,
            "env": {name: value for name, value in env.items() if name not in secrets},
        }
        return _job(self.post("/jobs", {"secrets": {}, **body}))

    def wait(
        self,
        name_or_id: str,
        *,
        timeout_seconds: float | None = None,
        on_change: Callable[[Job], None] = lambda _job: None,
    ) -> Job:
        """Wait until a job has ended and return it; calls `on_change` with each new state.

        Raises:
            JobTimeoutError: it did not end in time; it continues.
        """
        job, state = self.job(name_or_id), ""
        until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            if job.state != state:
                state = job.state
                on_change(job)
            if job.has_ended:
                return job
            if until is not None and time.monotonic() >= until:
                raise JobTimeoutError(f"Job {job.name} ({job.short_id}) is still {job.state}.")
            time.sleep(POLL_SECONDS)
            job = _job(self.get(f"/jobs/{job.id}"))

    def result(self, name_or_id: str, *, timeout_seconds: float | None = None) -> Job:
        """Wait until a job has ended and return it.

        Raises:
            JobFailedError: it did not succeed.
            JobTimeoutError: it did not end in time; it continues.
        """
        job = self.wait(name_or_id, timeout_seconds=timeout_seconds)
        if job.state != "succeeded":
            raise JobFailedError(job)
        return job

    def logs(
        self,
        name_or_id: str,
        *,
        follow: bool = False,
        on_change: Callable[[Job], None] = lambda _job: None,
    ) -> Iterator[str]:
        """Yield the log of a job in pieces; with `follow` until the job ends.

        While it follows, it calls `on_change` with each new state.
        """
        for line in self.log_lines(name_or_id, follow=follow, on_change=on_change):
            yield line.text if line.is_open else f"{line.text}\n"

    def log_lines(
        self,
        name_or_id: str,
        *,
        follow: bool = False,
        tail_bytes: int | None = None,
        on_change: Callable[[Job], None] = lambda _job: None,
    ) -> Iterator[LogLine]:
        """Yield the lines of a job's log with their times and streams; see `logs`.

        Args:
            name_or_id: the job.
            follow: continue until the job ends, with the logs of further attempts; reconnects if
                the connection breaks, without missing or repeating a line.
            tail_bytes: begin this long before the present end; by default at the beginning.
            on_change: called with the job in each new state.
        """
        job_id = self.job(name_or_id).id
        if not follow:
            yield from self._stored_lines(job_id, tail_bytes)
            return
        state = ""
        for event in follow_events(lambda after: self._stream(job_id, after, tail_bytes)):
            if event.name == "log":
                yield from msgspec.convert(event.data["lines"], list[LogLine])
            elif event.data["state"] != state:
                state = event.data["state"]
                on_change(self.job(job_id))

    def _stored_lines(self, job_id: str, tail_bytes: int | None) -> Iterator[LogLine]:
        page = self.get(f"/jobs/{job_id}/log", tail_bytes=tail_bytes)
        while page["lines"]:
            yield from msgspec.convert(page["lines"], list[LogLine])
            page = self.get(f"/jobs/{job_id}/log", offset=page["next_offset"])

    def _stream(self, job_id: str, after: str, tail_bytes: int | None) -> requests.Response:
        url = f"{self._base}/jobs/{job_id}/follow"
        # A job that waited has its first attempt now.
        start = {"after": after} if after else {"tail_bytes": tail_bytes}
        # Whoever reads the events reconnects.
        return self._connection.send_once(
            "GET", url, params=start, stream=True, timeout=SILENCE_SECONDS
        )

    @contextmanager
    def exec(
        self, name_or_id: str, command: Sequence[str] = (), *, size: "Size | None" = None
    ) -> Iterator["Exec"]:
        """Run a command in a running job, by default a shell.

        With a size, in columns and rows, it runs in a terminal.
        """
        from vedette.exec import open_exec  # noqa: PLC0415 - no other call needs WebSocket

        url = f"{self._base}/jobs/{self.job(name_or_id).id}/exec"
        with open_exec(url, self._connection.headers, command, size=size) as opened:
            yield opened

    def copy_from(self, name_or_id: str, path: str) -> Iterator[bytes]:
        """Yield a file or folder of a running job as a tar archive.

        Raises:
            UnavailableError: the copy broke off, also after its beginning.
        """
        url = f"{self._base}/jobs/{self.job(name_or_id).id}/files"
        yield from self._streamed(url, {"path": path}, what="copy")

    def copy_to(self, name_or_id: str, folder: str, archive: Iterator[bytes]) -> None:
        """Unpack a tar archive in a folder of a running job, once all of it has arrived."""
        url = f"{self._base}/jobs/{self.job(name_or_id).id}/files"
        # The archive can't be read again.
        self._connection.send_once(
            "PUT", url, params={"path": folder}, data=archive, timeout=COPY_SECONDS
        )

    def artifacts(self, name_or_id: str, *, prefix: str = "") -> Iterator[dict[str, Any]]:
        """Yield the files in the output folders of a job, by path; or those below a prefix."""
        path = f"/jobs/{self.job(name_or_id).id}/artifacts"
        yield from self._numbered_pages(path, prefix=prefix)

    def download_artifact(self, name_or_id: str, path: str) -> Iterator[bytes]:
        """Yield the content of a file in the output folders of a job.

        Raises:
            UnavailableError: the download broke off, also after its beginning.
        """
        base = f"/jobs/{self.job(name_or_id).id}/artifacts"
        offset = 0
        for part in self.get(f"{base}/parts", path=path)["items"]:
            size = part["size_bytes"]
            if part["url"]:
                # Signed, so that our token must not go there.
                chunks = fetch_signed(part["url"])
            else:
                span = {"Range": f"bytes={offset}-{offset + size - 1}"}
                url = f"{self._base}{base}/file"
                chunks = self._streamed(url, {"path": path}, span)
            yield from chunks
            offset += size

    def search_logs(
        self, search: str | None = None, *, limit: int | None = None, **filters: str | None
    ) -> Iterator[dict[str, Any]]:
        """Yield lines of logs that match a search, newest first.

        Args:
            search: words, phrases and regular expressions; see docs/logs.md.
            limit: number of lines; by default all of the time range.
            filters: as those of `GET /logs`, such as `since`, `level` or `job_id`.
        """
        query = {"search": search, **filters}
        yield from self._continued_pages("/logs", limit, page_size=LOG_PAGE_SIZE, **query)

    def follow_search(
        self, search: str | None = None, **filters: str | None
    ) -> Iterator[dict[str, Any]]:
        """Yield new lines that match a search, as they arrive, until the caller stops.

        Lines of different hosts arrive out of order: those of the last minutes are asked for again,
        and each is yielded once.
        """
        filters = {name: text for name, text in filters.items() if name not in {"since", "until"}}
        seen: dict[str, None] = dict.fromkeys(
            line["id"] for line in self.search_logs(search, limit=LOG_PAGE_SIZE, **filters)
        )
        while True:
            time.sleep(FOLLOW_SECONDS)
            lines = list(self.search_logs(search, limit=LOG_PAGE_SIZE, **filters))
            for line in reversed(lines):
                if line["id"] not in seen:
                    yield line
            seen = {line["id"]: None for line in lines} | dict.fromkeys(list(seen)[:MAX_SEEN])

    def query(
        self,
        measurement: str,
        fields: Sequence[str],
        *,
        aggregate: str = "avg",
        step: str = "",
        group_by: Sequence[str] = (),
        filters: Mapping[str, str | Sequence[str]] | None = None,
        since: str = "-1h",
        until: str = "now",
        library: FrameLibrary | None = None,
    ) -> Any:  # noqa: ANN401 - of the library
        """Return aggregates of samples as a data frame: `time`, the tags of `group_by`, the fields.

        Args:
            measurement: such as `gpu`.
            fields: such as `power_watts`.
            aggregate: reduces the samples of a group in a window: `avg`, `max`, `p95` ...
            step: the width of the windows, such as `5m`; without one, the range is one window.
            group_by: tags, of which each combination of values is a group.
            filters: one value of each tag, or several of which one must match.
            since: inclusive, `until` exclusive: RFC 3339, or relative to now such as `-6h`.
            library: `pandas` or `polars`; by default the one that is installed.

        Raises:
            ConfigurationError: the library is not installed.
        """
        library = chosen_library(library)
        params = [("measurement", measurement), ("fields", ",".join(fields))]
        params += [("aggregate", aggregate), ("since", since), ("until", until)]
        params += [("step", step)] if step else []
        params += [("group_by", ",".join(group_by))] if group_by else []
        for tag, values in (filters or {}).items():
            listed = [values] if isinstance(values, str) else values
            params += [("filter", f"{tag}={value}") for value in listed]
        pages = self._pages("/query", params, accept="application/vnd.apache.arrow.stream")
        return to_frame([page.content for page in pages], library)


def _last(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _job(data: object) -> Job:
    return msgspec.convert(data, Job)
