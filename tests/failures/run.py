"""Runs a scenario under load, and measures what it cost."""

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial

import requests

from benchmarks.shared.document import Promise
from tests.delivery.engine import Process
from tests.failures.alerts import Inbox
from tests.failures.jobs import JobLedger, Users
from tests.failures.samples import SampleLedger
from tests.failures.scenarios import Scenario
from tests.failures.site import Site

GOAL_SECONDS = 30.0
COUNTS = (
    "samples_lost",
    "samples_doubled",
    "jobs_lost",
    "jobs_run_twice",
    "alerts_missed",
    "alerts_doubled",
)
SETTLE_SECONDS = 120.0
POLL_SECONDS = 0.25
# The priority of a job that waits for none of those that were submitted during the fault.
FIRST = 100
# systemd waits so long, too.
SUPERVISE_SECONDS = 2.0
BEFORE_SECONDS = 5.0
# Two evaluations. An alert of late samples fires for ten minutes, unless one sees that its signal
# is still there (docs/alerts.md).
BREACHED_SECONDS = 5.0


@dataclass(slots=True, kw_only=True)
class Result:
    """What a scenario cost, and what was under way.

    Attributes:
        recovery_seconds: from the end of the fault until each kind of work is done again.
        operators_see: what `/readyz` or the newest line of a log says during the fault.
        failed_jobs: those that are lost, with their state.
    """

    name: str
    samples_lost: int = 0
    samples_doubled: int = 0
    jobs_lost: int = 0
    jobs_run_twice: int = 0
    alerts_missed: int = 0
    alerts_doubled: int = 0
    recovery_seconds: dict[str, float] = field(default_factory=dict)
    operators_see: str = ""
    samples: int = 0
    jobs: int = 0
    failed_jobs: list[str] = field(default_factory=list)

    def promises(self) -> list[Promise]:
        """Return what is promised, with what was measured."""
        figures = asdict(self)
        counts = [
            Promise(name.replace("_", " "), figures[name], 0.0, name.partition("_")[0])
            for name in COUNTS
        ]
        recovery = [
            Promise(f"recovery of {name}", seconds, GOAL_SECONDS, "s")
            for name, seconds in self.recovery_seconds.items()
        ]
        return counts + recovery


class Runner:
    """Runs scenarios on a site, one after the other."""

    def __init__(self, site: Site, users: Users, inbox: Inbox) -> None:
        self._site, self._users, self._inbox = site, users, inbox
        self._samples = SampleLedger(site)
        self._jobs = JobLedger(site, users)
        self._round = 0
        # The last agents of the fleet: signals before, during and after the fault.
        self._before, self._during, self._after = site.agents.names[-3:]

    def run(self, scenario: Scenario) -> Result:
        """Run a scenario; return its figures."""
        result = Result(name=scenario.name)
        self._round += 1
        self._inbox.clear()
        self._jobs.begin(scenario.name)
        time.sleep(BEFORE_SECONDS)
        self._samples.note_present()
        self._signal(self._before, 1)
        time.sleep(BEFORE_SECONDS / 2)
        log_sizes = self._log_sizes()
        fault = scenario.fault(self._site)
        next(fault)
        self._samples.note_killed(self._site.killed_agents())
        time.sleep(scenario.seconds / 2)
        self._signal(self._during, 1)
        result.operators_see = self._seen(log_sizes)
        time.sleep(scenario.seconds / 2)
        self._signal(self._after, 1)
        result.recovery_seconds = self._recovery(fault)
        self._settle(result)
        return result

    def _recovery(self, fault: Iterator[None]) -> dict[str, float]:
        """End the fault; return how long it takes until each kind of work is done again."""
        began_at, began = time.time(), time.monotonic()
        next(fault, None)
        probes: dict[str, Callable[[], bool]] = {
            "requests": self._answers,
            "samples": lambda: self._has_samples_since(began_at),
            "jobs": RecoveryJob(self._users, f"after-{began_at:.0f}").has_run,
            "alerts": lambda: self._inbox.have([self._after], "firing"),
        }

        def seconds_until(probe: Callable[[], bool]) -> float:
            while not _is_true(probe) and time.monotonic() < began + SETTLE_SECONDS:
                time.sleep(POLL_SECONDS)
            return round(time.monotonic() - began, 1)

        with ThreadPoolExecutor(len(probes)) as pool:
            futures = {name: pool.submit(seconds_until, probe) for name, probe in probes.items()}
            while not all(future.done() for future in futures.values()):
                self._site.supervise()
                time.sleep(SUPERVISE_SECONDS)
        return {name: future.result() for name, future in futures.items()}

    def _settle(self, result: Result) -> None:
        """Wait until everything has arrived, and count what has not."""
        names = [self._before, self._during, self._after]
        _wait(partial(self._inbox.have, names, "firing"))
        time.sleep(BREACHED_SECONDS)
        for name in names:
            self._signal(name, 0)
        _wait(partial(self._inbox.have, names, "resolved"))
        self._jobs.end()
        _wait(self._jobs.has_ended)
        self._samples.note_present()
        _wait(self._samples.is_complete)
        losses, runs = self._samples.count(), self._jobs.runs()
        deliveries = self._inbox.deliveries(names)
        result.samples_lost, result.samples_doubled = losses.lost, losses.doubled
        result.jobs_lost, result.jobs_run_twice = runs.lost, runs.ran_twice
        result.alerts_missed, result.alerts_doubled = deliveries.missed, deliveries.doubled
        result.samples, result.jobs = losses.stored, runs.submitted
        result.failed_jobs = runs.failures

    def _signal(self, name: str, value: int) -> None:
        self._site.agents.set_signal(name, value, round_name=str(self._round))

    def _answers(self) -> bool:
        """Return whether nginx has an answer at each of four new connections."""
        for _ in range(4):
            self._users.request("GET", "/appliances", params={"page_size": 1})
        return True

    def _has_samples_since(self, instant: float) -> bool:
        """Return whether the store has a sample of each agent that is younger than an instant."""
        query = "max(tlast_over_time(collectd_failures_value[5m])) by (appliance)"
        answer = requests.get(
            f"{self._site.store_url}/api/v1/query", {"query": query, "nocache": "1"}, timeout=10
        )
        series = answer.json()["data"]["result"]
        times = [float(entry["value"][1]) for entry in series]
        return sum(at > instant for at in times) == len(self._site.agents.homes)

    def _log_sizes(self) -> dict[str, int]:
        return {name: process.log.stat().st_size for name, process in self._own_processes()}

    def _own_processes(self) -> list[tuple[str, Process]]:
        kinds = ("portal", "access", "scheduler", "agent")
        return [(name, process) for name, process in self._site.processes.items()
                if name.startswith(kinds)]  # fmt: skip

    def _seen(self, log_sizes: Mapping[str, int]) -> str:
        """Return what `/readyz` of a portal says, else the newest warning of the logs."""
        for name in ("portal-2", "portal-1"):
            with suppress(requests.RequestException):
                url = f"http://127.0.0.1:{self._site.ports[name]}/readyz"
                details = requests.get(url, timeout=15).json().get("details")
                if details:
                    return "`/readyz`: " + "; ".join(map(": ".join, details.items()))
        lines = [
            (line, name)
            for name, process in self._own_processes()
            for line in process.log.read_bytes()[log_sizes[name] :]
            .decode(errors="replace")
            .splitlines()
            if " WARNING " in line or " ERROR " in line
        ]
        line, name = max(lines, default=("", ""))  # they begin with the time
        return f"log of {name.rpartition('-')[0]}: {line}" if lines else "nothing"


class RecoveryJob:
    """A job that is submitted after a fault, again and again until a portal accepts it."""

    def __init__(self, users: Users, name: str) -> None:
        self._users, self._name, self._id = users, name, ""

    def has_run(self) -> bool:
        """Return whether it has succeeded."""
        self._id = self._id or self._users.submit(self._name, priority=FIRST)
        return bool(self._users.job(self._id)["state"] == "succeeded")


def _is_true(probe: Callable[[], bool]) -> bool:
    """Return what a probe says, which is False while it gets no answer."""
    try:
        return probe()
    except (requests.RequestException, KeyError):
        return False


def _wait(probe: Callable[[], bool]) -> None:
    """Wait until a probe is true, or for as long as anything may take."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while not _is_true(probe) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
