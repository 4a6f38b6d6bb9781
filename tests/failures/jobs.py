"""Submits a job every second or two, and counts how often each one ran.

A request that breaks may have been received. Its job has a name, by which it is looked for later.
"""

import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from threading import Event, Thread
from typing import Any

import requests

from cli.bootstrap import DEMO_PASSWORD
from tests.deployment import ALICE
from tests.failures.site import Site
from tests.fixtures.docker_engine import IMAGE
from tests.integration.test_jobs import FINAL

EVERY_SECONDS = 2.0
REQUEST_SECONDS = 15.0
JOB = {"image": IMAGE, "memory_bytes": 64 * 2**20, "command": ["sh", "-c", "echo ran"]}


@dataclass(frozen=True, slots=True)
class Runs:
    """How the jobs of a scenario ended."""

    submitted: int
    lost: int
    ran_twice: int
    failures: list[str]


class Users:
    """Requests of a user through nginx, as programs send them."""

    def __init__(self, site: Site) -> None:
        self._base = f"{site.url}/api/v1"
        self._authority = str(site.authority.certificate)
        self._headers: dict[str, str] = {}
        token = self.request("POST", "/tokens", json={"name": "load"}, auth=(ALICE, DEMO_PASSWORD))
        self._headers = {"Authorization": f"Bearer {token.json()['secret']}"}

    def request(self, method: str, path: str, **options: Any) -> requests.Response:  # noqa: ANN401
        """Send a request over a new connection.

        Raises:
            requests.RequestException: there is no answer, or it is an error.
        """
        answer = requests.request(
            method,
            f"{self._base}{path}",
            headers=self._headers,
            verify=self._authority,
            timeout=REQUEST_SECONDS,
            **options,
        )
        answer.raise_for_status()
        return answer

    def submit(self, name: str, *, priority: int = 0) -> str:
        """Submit a job; return its id."""
        body = {**JOB, "name": name, "priority": priority}
        return str(self.request("POST", "/jobs", json=body).json()["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        """Return a job."""
        job: dict[str, Any] = self.request("GET", f"/jobs/{job_id}").json()
        return job


class JobLedger:
    """Submits jobs in a thread while a scenario runs."""

    def __init__(self, site: Site, users: Users) -> None:
        self._site, self._users = site, users
        self._prefix = ""
        self._accepted: set[str] = set()
        self._stop = Event()
        self._thread = Thread()

    def begin(self, scenario: str) -> None:
        """Submit jobs from now on."""
        self._prefix = f"{scenario}-{time.time_ns() // 10**9}"
        self._accepted.clear()
        self._stop.clear()
        self._thread = Thread(target=self._submit, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Submit none any more."""
        self._stop.set()
        self._thread.join()

    def has_ended(self) -> bool:
        """Return whether all jobs have ended."""
        return all(job["state"] in FINAL for job in self._jobs())

    def runs(self) -> Runs:
        """Return how often each job ran."""
        times = Counter(start.get("VEDETTE_JOB_ID") for start in self._site.engine.starts())
        jobs = self._jobs()
        absent = self._accepted - {job["name"] for job in jobs}
        failed = [job for job in jobs if job["state"] != "succeeded" or not times[job["id"]]]
        return Runs(
            submitted=len(jobs),
            lost=len(absent) + len(failed),
            ran_twice=sum(times[job["id"]] > 1 for job in jobs),
            failures=[f"{job['name']}: {job['state']} {job['message']}" for job in failed],
        )

    def _submit(self) -> None:
        for number in count():
            name = f"{self._prefix}-{number}"
            with suppress(requests.RequestException):
                self._users.submit(name)
                self._accepted.add(name)
            if self._stop.wait(EVERY_SECONDS):
                return

    def _jobs(self) -> list[dict[str, Any]]:
        query = {"search": self._prefix, "page_size": 200}
        jobs: list[dict[str, Any]] = self._users.request("GET", "/jobs", params=query).json()[
            "items"
        ]
        return jobs
