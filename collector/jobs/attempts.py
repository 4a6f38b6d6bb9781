"""The attempt runner: makes the executor match what the portal wants and reports what it sees."""

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from threading import Lock

from collector.jobs.ledger import load_ledger, save_ledger
from collector.jobs.log_shipper import LogShipper
from collector.jobs.reconcile import Action, Forget, Mark, Remove, Start, Stop, reconcile
from collector.sending.link import PortalLink
from core.clock import to_ns
from jobqueue.executors.base import (
    AttemptObservation,
    Executor,
    ExecutorError,
    ExecutorUnavailableError,
    ObservedState,
)
from jobqueue.executors.wire import DesiredState, ObservedReport
from timeseries.points import Point

log = logging.getLogger(__name__)

REPORT_EVERY = timedelta(seconds=10)


class AttemptRunner:
    """Runs attempts on one executor.

    `step`, `report` and `ship_logs` belong to one thread; `take_desired`, `gpu_holders`,
    `job_of_container` and `usage_points` may be called from others.
    """

    def __init__(
        self, executor: Executor, *, ledger_path: Path, stop_grace_seconds: float = 10.0
    ) -> None:
        self._executor = executor
        self._ledger_path = ledger_path
        self._stop_grace_seconds = stop_grace_seconds
        self._lock = Lock()
        self._ledger = load_ledger(ledger_path)
        self._job_of_attempt = _jobs_wanted(self._ledger.desired)
        self._shipper = LogShipper(executor)
        self._observed: dict[str, AttemptObservation] = {}
        self._reported: list[AttemptObservation] | None = None
        self._reported_at: datetime | None = None
        self._is_engine_away = True
        self._has_observed = False

    @property
    def generation(self) -> int:
        """The generation of the desired state that was heard last; -1 for none."""
        with self._lock:
            return self._ledger.desired.generation if self._ledger.desired else -1

    @property
    def is_engine_away(self) -> bool:
        """Whether the executor did not answer when it was last asked, or was not asked yet."""
        return self._is_engine_away

    def take_desired(self, desired: DesiredState) -> None:
        """Take the portal's word; the next step acts on it."""
        with self._lock:
            if desired != self._ledger.desired:
                self._ledger.desired = desired
                # An attempt that is being stopped is listed without its job, and still runs.
                jobs = {**self._job_of_attempt, **_jobs_wanted(desired)}
                listed = {*self._observed, *desired.stopping, *_jobs_wanted(desired)}
                self._job_of_attempt = {key: jobs[key] for key in jobs.keys() & listed}
                save_ledger(self._ledger_path, self._ledger)

    def step(self) -> None:
        """Look at the executor once and do what is needed."""
        try:
            self._observed = {seen.attempt_id: seen for seen in self._executor.observe()}
        except ExecutorUnavailableError as error:
            if self._has_observed and not self._is_engine_away:
                log.warning("executor %s is away: %s", self._executor.name, error)
            self._is_engine_away = True
            return
        except ExecutorError as error:
            log.warning("executor %s: %s", self._executor.name, error)
            return
        if self._is_engine_away:
            log.info("executor %s answers", self._executor.name)
        self._is_engine_away, self._has_observed = False, True
        with self._lock:
            self._remember(self._observed)
            desired = self._ledger.desired
            remembered = dict(self._ledger.remembered)
        if desired is not None:
            actions = reconcile(
                desired,
                self._observed,
                remembered=remembered,
                delivered_logs=self._shipper.delivered,
            )
            for action in actions:
                self._act(action)

    def report(self, link: PortalLink, now: datetime) -> None:
        """Tell the portal what is seen: on every change, and every ten seconds.

        Raises:
            PortalUnreachableError: told again at the next call.
        """
        if not self._has_observed:
            return  # an empty report would say that nothing runs
        attempts = self._known()
        is_due = self._reported_at is None or now - self._reported_at >= REPORT_EVERY
        if attempts == self._reported and not is_due:
            return
        link.report(ObservedReport(attempts=attempts))
        self._reported, self._reported_at = attempts, now

    def ship_logs(self, link: PortalLink) -> None:
        """Send what attempts have written since the last call.

        Raises:
            PortalUnreachableError: sent again from there at the next call.
        """
        for observation in list(self._observed.values()):
            try:
                self._shipper.ship(link, observation)
            except ExecutorError as error:
                log.warning("the log of %s can't be read: %s", observation.attempt_id, error)

    def gpu_holders(self) -> Mapping[str, str]:
        """Return GPU UUID to the job that holds it by a running attempt."""
        with self._lock:
            specs = self._ledger.desired.attempts if self._ledger.desired else []
        running = {
            seen.attempt_id
            for seen in list(self._observed.values())
            if seen.state is ObservedState.RUNNING
        }
        return {
            uuid: spec.job_id
            for spec in specs
            if spec.attempt_id in running
            for uuid in spec.gpu_uuids
        }

    def job_of_container(self) -> Mapping[str, str]:
        """Return container id to the job that it runs, for attempts that have not ended."""
        with self._lock:
            job_of_attempt = self._job_of_attempt
        observed = self._observed
        return {
            container_id: job_of_attempt[attempt_id]
            for container_id, attempt_id in self._executor.container_ids().items()
            if attempt_id in job_of_attempt
            and (seen := observed.get(attempt_id)) is not None
            and not seen.state.is_final
        }

    def usage_points(self, now: datetime) -> list[Point]:
        """Return one point for each running attempt."""
        with self._lock:
            specs = self._ledger.desired.attempts if self._ledger.desired else []
        points = []
        for spec in specs:
            try:
                usage = self._executor.usage(spec.attempt_id)
            except ExecutorError:
                continue  # the next step says so, once
            if usage is not None:
                tags = {"job": spec.job_id, "attempt": spec.attempt_id}
                fields = {"cpu_percent": usage.cpu_percent, "memory_bytes": usage.memory_bytes}
                points.append(Point("attempt", tags, fields, to_ns(now)))
        return points

    def _known(self) -> list[AttemptObservation]:
        """Return what is seen, and how those ended that the executor knows no more."""
        with self._lock:
            ended = {
                attempt_id: known
                for attempt_id, known in self._ledger.remembered.items()
                if known.state.is_final
            }
        merged = {**self._observed, **ended}
        return [merged[attempt_id] for attempt_id in sorted(merged)]

    def _remember(self, observed: Mapping[str, AttemptObservation]) -> None:
        """Keep the last state of each attempt; an end is never taken back."""
        is_changed = False
        for attempt_id, seen in observed.items():
            known = self._ledger.remembered.get(attempt_id)
            if known == seen or (known is not None and known.state.is_final):
                continue
            self._ledger.remembered[attempt_id] = seen
            is_changed = True
        if is_changed:
            save_ledger(self._ledger_path, self._ledger)

    def _act(self, action: Action) -> None:
        try:
            match action:
                case Start(spec):
                    log.info("starting attempt %s (%s)", spec.attempt_id, spec.name)
                    self._executor.start(spec)
                case Stop(attempt_id):
                    self._executor.stop(attempt_id, grace_seconds=self._stop_grace_seconds)
                case Remove(attempt_id):
                    self._executor.remove(attempt_id)
                    self._observed.pop(attempt_id, None)
                    self._forget(attempt_id)
                case Mark(observation):
                    self._mark(observation)
                case Forget(attempt_id):
                    self._forget(attempt_id)
        except ExecutorError as error:
            log.warning("%s: %s", type(action).__name__.lower(), error)

    def _mark(self, observation: AttemptObservation) -> None:
        with self._lock:
            self._ledger.remembered[observation.attempt_id] = observation
            save_ledger(self._ledger_path, self._ledger)

    def _forget(self, attempt_id: str) -> None:
        self._shipper.forget(attempt_id)
        with self._lock:
            if self._ledger.remembered.pop(attempt_id, None) is not None:
                save_ledger(self._ledger_path, self._ledger)


def _jobs_wanted(desired: DesiredState | None) -> dict[str, str]:
    return {spec.attempt_id: spec.job_id for spec in desired.attempts} if desired else {}
