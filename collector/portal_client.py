"""The portal client: an enrolled agent's tasks beside sending samples, one thread each.

heartbeat   sends heartbeats with inventory and health
desired     long-polls the desired state
attempts    makes the executor match it; reports observations and ships logs
datasets    reports the cache of datasets
storage     reports images and stopped containers, and deletes what the portal orders
logs-read   moves lines of the host's logs to their buffer
logs-send   sends them
tunnel      serves a tunnel to attempts while the portal wants one
"""

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from threading import Event

from collector.config import AgentConfig
from collector.datasets.stager import Stager
from collector.heartbeats import Heartbeats
from collector.jobs.attempts import AttemptRunner
from collector.jobs.storage import StorageReporter
from collector.logs.shipping import HostLogs
from collector.periodic_task import PeriodicTask
from collector.samples import SampleWriter
from collector.sending.portal_connection import PortalConnection
from core.clock import Clock

OFFLINE_WAIT_SECONDS = 1.0
UNCHANGED_WAIT_SECONDS = 1.0
TUNNEL_WAIT_SECONDS = 5.0
RECONNECT_SECONDS = 0.5
# New output of attempts is read this often: users follow it.
LOG_INTERVAL_SECONDS = 0.2


class PortalClient:
    """Sends heartbeats, and runs attempts if there is an executor.

    Args:
        connect: opens a connection for one thread.
        config: returns the current configuration.
        heartbeats: sends heartbeats.
        runner: runs attempts; None without an executor.
        storage: reports the container storage; None without an engine.
        stager: fetches datasets; None if the agent can't.
        host_logs: reads and sends the host's logs; None if that is off.
        samples: takes the usage of attempts.
        is_offline: whether a simulated appliance has an outage now.
        clock: the time.
    """

    def __init__(
        self,
        connect: Callable[[], PortalConnection],
        *,
        config: Callable[[], AgentConfig],
        heartbeats: Heartbeats,
        runner: AttemptRunner | None,
        storage: StorageReporter | None,
        stager: Stager | None,
        samples: SampleWriter,
        host_logs: HostLogs | None,
        is_offline: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._connect = connect
        self._config = config
        self._heartbeats = heartbeats
        self._runner = runner
        self._storage = storage
        self._stager = stager
        self._samples = samples
        self._host_logs = host_logs
        self._is_offline = is_offline
        self._clock = clock
        self._usage_due_at: datetime | None = None
        self._step_due = 0.0

    def tasks(self, stop: Event) -> list[PeriodicTask]:
        """Return the tasks, not started yet."""
        tasks = [self._task("heartbeat", self._send_heartbeat, stop)]
        if (runner := self._runner) is not None:
            tasks += [
                self._task(
                    "attempts",
                    lambda portal: self._run_attempts(runner, portal),
                    stop,
                    wake=runner.step_wanted,
                ),
                self._task(
                    "tunnel",
                    lambda portal: self._serve_tunnel(runner, portal, stop),
                    stop,
                    is_polling=True,
                ),
                self._task(
                    "desired", lambda portal: self._poll(runner, portal), stop, is_polling=True
                ),
            ]
        if (host_logs := self._host_logs) is not None:
            tasks += [
                PeriodicTask("logs-read", host_logs.read_step, stop=stop),
                self._task("logs-send", host_logs.send_step, stop, is_polling=True),
            ]
        if self._storage is not None:
            tasks.append(self._task("storage", self._report_storage, stop))
        if (stager := self._stager) is not None:
            tasks.append(
                self._task("datasets", lambda portal: self._report_datasets(stager, portal), stop)
            )
        return tasks

    def _report_storage(self, portal: PortalConnection) -> float:
        if self._storage is None or self._is_offline():
            return OFFLINE_WAIT_SECONDS
        return self._storage.step(portal)

    def _report_datasets(self, stager: Stager, portal: PortalConnection) -> float:
        return OFFLINE_WAIT_SECONDS if self._is_offline() else stager.report_step(portal)

    def _task(
        self,
        name: str,
        step: Callable[[PortalConnection], float],
        stop: Event,
        *,
        wake: Event | None = None,
        is_polling: bool = False,
    ) -> PeriodicTask:
        portal = self._connect()
        return PeriodicTask(
            name,
            lambda: step(portal),
            stop=stop,
            wake=wake,
            on_end=portal.close,
            is_polling=is_polling,
        )

    def _send_heartbeat(self, portal: PortalConnection) -> float:
        if self._is_offline():
            return OFFLINE_WAIT_SECONDS
        interval_seconds = self._config().heartbeat_interval_seconds
        return self._heartbeats.step(portal, interval_seconds=interval_seconds)

    def _poll(self, runner: AttemptRunner, portal: PortalConnection) -> float:
        if self._is_offline():
            return OFFLINE_WAIT_SECONDS
        began, generation = time.monotonic(), runner.generation
        desired = portal.desired(generation, wait_seconds=self._config().poll_wait_seconds)
        if desired is not None:
            runner.set_desired(desired)
        is_changed = runner.generation != generation
        was_long = time.monotonic() - began >= UNCHANGED_WAIT_SECONDS
        return 0.0 if is_changed or was_long else UNCHANGED_WAIT_SECONDS

    def _serve_tunnel(self, runner: AttemptRunner, portal: PortalConnection, stop: Event) -> float:
        if runner.tunnel_wanted.wait(TUNNEL_WAIT_SECONDS) and not self._is_offline():
            portal.tunnel(
                runner.endpoint,
                runner.execute,
                lambda: runner.tunnel_wanted.is_set() and not stop.is_set(),
            )
            return RECONNECT_SECONDS
        return 0.0

    def _run_attempts(self, runner: AttemptRunner, portal: PortalConnection) -> float:
        interval_seconds = self._config().attempts_interval_seconds
        is_due = runner.step_wanted.is_set() or time.monotonic() >= self._step_due
        if is_due:
            self._step_due = time.monotonic() + interval_seconds
            runner.step()
            self._add_usage(runner, self._clock())
        if not self._is_offline():
            # Logs first: once an attempt is reported as ended, its last line can be read.
            runner.ship_logs(portal)
            if is_due:
                runner.report(portal, self._clock())
        return (
            min(interval_seconds, LOG_INTERVAL_SECONDS) if runner.is_running else interval_seconds
        )

    def _add_usage(self, runner: AttemptRunner, now: datetime) -> None:
        interval = timedelta(seconds=self._config().interval_seconds)
        due_at = self._usage_due_at
        if due_at is None or not now < due_at <= now + interval:
            self._usage_due_at = now + interval
            self._samples.add(runner.usage_points(now))
