"""The agent: everything that runs on an appliance, in a few threads.

    read-host   plugins -> buffer on disk, and the agent's own metrics
    read-NAME   plugins that run in the worker process NAME
    sender      buffer -> portal, or InfluxDB
    remote-write  buffer -> another server, if one is configured

and those of `collector.portal_client`. The thread that runs the agent watches the read threads. One
process can run several agents: there is no global state, and signals are up to the caller.
"""

import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from threading import Event, Lock

from collector.certificate_renewal import CertificateManager
from collector.config import AgentConfig, apply_live_settings, changed_settings, restart_settings
from collector.data_dir import Identity
from collector.datasets.build import build_stager
from collector.gang_networks.build import build_gang_networks
from collector.gpu_slices.build import build_slices
from collector.heartbeats import HeartbeatBuilder
from collector.jobs.attempts import AttemptRunner
from collector.jobs.build import build_preparations
from collector.jobs.executors import build_executor
from collector.jobs.storage import StorageReporter
from collector.logs.shipping import HostLogs
from collector.own_metrics import OwnMetrics
from collector.periodic_task import PeriodicTask
from collector.portal_client import OFFLINE_WAIT_SECONDS, PortalClient
from collector.reading.plugin_host import PluginHost, plugin_plans
from collector.remote_write.writer import RemoteWriter
from collector.samples import SampleWriter, append_points
from collector.sending.delivery import (
    build_buffer,
    build_delivery,
    connect_to_portal,
)
from collector.sending.portal_connection import PortalConnection
from collector.sending.transfer import PortalTransfer
from collector.updates import Updates
from core.clock import Clock, utc_now
from jobqueue.executors.base import Executor
from jobqueue.executors.registry_token import CurrentRegistryToken
from plugins.base import PluginContext
from plugins.simulation.appliance import SimulatedAppliance
from plugins.simulation.config import SimulationConfig
from plugins.simulation.history import history
from timeseries.points import Point

log = logging.getLogger(__name__)

WAIT_FOR_FRAMES_SECONDS = 60.0
JOIN_SECONDS = 5.0
LOGS_NAME = "logs"
POLL_JOIN_SECONDS = 1.0


class Agent:
    """One appliance's agent.

    Args:
        config: the checked configuration.
        identity: from enrollment; None if samples go to an InfluxDB and there is no portal.
        clock: the time.
        executor: runs attempts; by default the configured one.
        simulation: the appliance to simulate; created if `config.executor` is `simulated`.
        update_service_dir: of the host's update service; None if it has none.

    Raises:
        ConfigurationError: a plugin's table has errors.
    """

    def __init__(
        self,
        config: AgentConfig,
        identity: Identity | None,
        *,
        clock: Clock = utc_now,
        executor: Executor | None = None,
        simulation: SimulatedAppliance | None = None,
        update_service_dir: Path | None = None,
    ) -> None:
        self._name = (
            identity.appliance_id if identity is not None else config.name or socket.gethostname()
        )
        if simulation is None and config.executor == "simulated":
            simulation = SimulatedAppliance(
                SimulationConfig(seed=self._name),
                started_at=clock(),
                mig_state_path=config.data_dir / "simulated-mig.json",
            )
        self._config = config
        self._identity = identity
        self._clock = clock
        self._simulation = simulation
        self._reload_lock = Lock()
        self._buffer = build_buffer(config, clock=clock)
        self._delivery = build_delivery(config, identity, self._buffer, clock=clock)
        self._sender = self._delivery.sender
        self._remote_writer = self._build_remote_writer()
        self._certificates = CertificateManager(config, identity, self._delivery, clock=clock)
        self._executor = executor
        self._registry_token = CurrentRegistryToken()
        if executor is None and identity is not None:
            self._executor = build_executor(
                config,
                owner=identity.appliance_id,
                simulation=simulation,
                registry_token=self._registry_token,
                clock=clock,
            )
        self._slices = build_slices(config, self._executor, simulation=simulation, clock=clock)
        self._stager = build_stager(
            config,
            identity,
            connect=self._connect,
            tls=self._delivery.tls,
            clock=clock,
        )
        self._networks = build_gang_networks(
            config, self._executor, owner=self._name, simulation=simulation
        )
        self._runner = self._build_runner()
        self._samples = SampleWriter(
            self._buffer, flush_interval_seconds=config.flush_interval_seconds
        )
        plans = list(plugin_plans(config, is_simulated=simulation is not None))
        self._heartbeat_builder = HeartbeatBuilder(
            config,
            plans,
            simulation=simulation,
            executor=self._executor,
            slices=self._slices,
            network=self._networks.abilities,
            runner=self._runner,
            can_stage=self._stager is not None,
            updates=Updates(config.data_dir, update_service_dir),
        )
        self._health = self._heartbeat_builder.health
        self._host = PluginHost(
            plans,
            self._plugin_context(),
            on_points=self._on_points,
            clock=clock,
            seed=self._name,
            after_readings=self._after_readings,
        )
        self._own_metrics = OwnMetrics(
            self._host,
            self._buffer,
            self._sender,
            access_points=self._delivery.access_points,
            samples=self._samples,
            clock=clock,
            extra_metrics=self._extra_metrics,
        )
        self._host_logs = self._build_host_logs()
        self._portal_client = self._build_portal_client(identity) if identity is not None else None

    @property
    def buffered_points(self) -> int:
        """The number of points that wait to be sent."""
        return self._buffer.points

    def run(self, stop: Event) -> None:
        """Run until `stop` is set; then write the last samples to disk and return."""
        log.info("agent %s uses %s", self._name, self._delivery.access_points.current)
        tasks = self._tasks(stop)
        if self._stager is not None:
            self._stager.start()
        self._host.start()
        for task in tasks:
            task.start()
        while not stop.wait(self._host.watch()):
            pass
        self._buffer.stop_waiting()
        if self._host_logs is not None:
            self._host_logs.stop_waiting()
        self._host.stop()
        self._samples.flush()
        for task in tasks:
            task.join(POLL_JOIN_SECONDS if task.is_polling else JOIN_SECONDS)
        if self._runner is not None:
            self._runner.close()
        if self._executor is not None:
            self._executor.close()
        if self._host_logs is not None:
            self._host_logs.close()
        self._buffer.close()

    def reload(self, config: AgentConfig) -> None:
        """Apply a new configuration; samples and attempts are not affected.

        Changed settings that need a restart are logged.

        Raises:
            ConfigurationError: a plugin's table has errors; the old configuration stays.
        """
        with self._reload_lock:
            effective = apply_live_settings(self._config, config)
            plans = list(plugin_plans(effective, is_simulated=self._simulation is not None))
            changed = changed_settings(self._config, config)
            need_restart = restart_settings(self._config, config)
            self._config = effective
            self._samples.flush_interval_seconds = effective.flush_interval_seconds
            self._host.apply(plans)
        log.info("reloaded the configuration; changed: %s", ", ".join(changed) or "nothing")
        if need_restart:
            log.warning("restart the agent to apply: %s", ", ".join(need_restart))

    def push_history(
        self,
        start_at: datetime,
        end_at: datetime,
        *,
        step_seconds: float,
        planned: tuple[datetime, datetime] | None = None,
    ) -> int:
        """Put simulated history into the buffer; return the number of points.

        Args:
            start_at: the time of the first points.
            end_at: the time after the last ones.
            step_seconds: the time between points.
            planned: the span of which this is a part; all parts show the same workloads.

        Raises:
            ValueError: this appliance is not simulated.
        """
        if self._simulation is None:
            raise ValueError("only a simulated appliance has simulated history")
        step = timedelta(seconds=step_seconds)
        config = self._simulation.config
        points = history(config, start_at=start_at, end_at=end_at, step=step, planned=planned)
        return append_points(points, self._buffer)

    def _build_remote_writer(self) -> RemoteWriter | None:
        settings = self._config.remote_write
        if settings is None:
            return None
        return RemoteWriter(
            settings,
            self._buffer,
            appliance=self._config.name or socket.gethostname(),
            clock=self._clock,
            environ=os.environ,
        )

    def _extra_metrics(self) -> Mapping[str, float | int | None]:
        own = self._remote_writer.metrics() if self._remote_writer is not None else {}
        cache = self._stager.metrics() if self._stager is not None else {}
        return {**self._certificates.metrics(), **own, **cache}

    def _build_host_logs(self) -> HostLogs | None:
        """Return what sends the host's logs; a simulated appliance is no host of its own."""
        config = self._config
        if self._identity is None or self._simulation is not None or not config.logs.enabled:
            return None
        return HostLogs(
            config.logs,
            config.data_dir / LOGS_NAME,
            clock=self._clock,
            max_age_seconds=config.buffer_max_age_seconds,
        )

    def _build_runner(self) -> AttemptRunner | None:
        executor, identity = self._executor, self._identity
        if executor is None:
            return None
        stager = self._stager
        preparations = build_preparations(
            self._config,
            executor,
            networks=self._networks,
            stager=stager,
            connect=None if identity is None else lambda: self._connect(identity),
            add_points=self._add_points,
            wake=lambda: self._runner.step_wanted.set() if self._runner is not None else None,
            clock=self._clock,
        )
        runner = AttemptRunner(
            executor,
            state_path=self._config.data_dir / "attempts.json",
            registry_token=self._registry_token,
            stop_grace_seconds=self._config.stop_grace_seconds,
            slices=self._slices,
            preparations=preparations,
            on_desired=stager.set_desired if stager is not None else lambda _: None,
            add_points=self._add_points,
            transfers=None if identity is None else lambda: PortalTransfer(self._connect(identity)),
            clock=self._clock,
        )
        if stager is not None:
            stager.wake = runner.step_wanted.set
        return runner

    def _add_points(self, points: list[Point]) -> None:
        """Add metrics of jobs; the writer is made after what finds them."""
        self._samples.add(points)

    def _storage_reporter(self) -> StorageReporter | None:
        storage = self._executor.storage() if self._executor is not None else None
        if storage is None or self._runner is None:
            return None
        return StorageReporter(storage, self._runner, self._clock)

    def _plugin_context(self) -> PluginContext:
        runner, identity = self._runner, self._identity
        context = PluginContext(
            simulation=self._simulation,
            docker_url=self._config.docker_url,
            known_gpus=self._health.known_gpus,
            transfer=PortalTransfer(self._connect(identity)) if identity is not None else None,
            publish_inventory=self._heartbeat_builder.set_inventory,
            publish_gpu_processes=self._heartbeat_builder.gpu_processes.update,
            publish_amd_processes=self._heartbeat_builder.gpu_processes.update_amd,
        )
        if runner is None:
            return context
        return replace(
            context, job_of_gpu=runner.job_of_gpu, job_of_container=runner.job_of_container
        )

    def _tasks(self, stop: Event) -> list[PeriodicTask]:
        tasks = [PeriodicTask("sender", self._send, stop=stop, on_end=self._sender.close)]
        if (writer := self._remote_writer) is not None:
            tasks.append(PeriodicTask("remote-write", writer.step, stop=stop, on_end=writer.close))
        if (prober := self._delivery.prober) is not None:
            tasks += prober.tasks(partial(PeriodicTask, stop=stop))
        tasks += self._certificates.tasks(stop)
        return tasks + (self._portal_client.tasks(stop) if self._portal_client is not None else [])

    def _build_portal_client(self, identity: Identity) -> PortalClient:
        return PortalClient(
            lambda: self._connect(identity),
            config=lambda: self._config,
            heartbeats=self._heartbeat_builder.heartbeats(
                self._host, self._buffer, clock=self._clock, samples=self._samples
            ),
            runner=self._runner,
            storage=self._storage_reporter(),
            stager=self._stager,
            samples=self._samples,
            host_logs=self._host_logs,
            is_offline=self._is_offline,
            clock=self._clock,
        )

    def _connect(self, identity: Identity) -> PortalConnection:
        return connect_to_portal(self._config, identity, self._delivery, clock=self._clock)

    def _on_points(self, points: list[Point]) -> None:
        # First: an error in the health check must not lose samples.
        plausible = self._samples.add(points)
        self._health.observe(plausible, self._clock())

    def _after_readings(self) -> float:
        """Add health and own metrics, and flush; return the seconds until this is due again."""
        interval_seconds = self._config.own_metrics_interval_seconds
        try:
            now = self._clock()
            points = self._health.points_when_due(now, interval_seconds=interval_seconds)
            self._samples.add(points)
            own_seconds = self._own_metrics.add_when_due(interval_seconds)
        finally:  # samples must reach the disk even if these fail
            flush_seconds = self._samples.flush_when_due()
        return min(own_seconds, flush_seconds)

    def _send(self) -> float:
        if not self._buffer.wait_for_frames(WAIT_FOR_FRAMES_SECONDS):
            return 0.0
        if self._is_offline():
            return OFFLINE_WAIT_SECONDS
        return self._sender.send_next().wait_seconds

    def _is_offline(self) -> bool:
        return self._simulation is not None and self._simulation.is_offline(self._clock())
