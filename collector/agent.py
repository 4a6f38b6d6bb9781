"""The agent: everything that runs on an appliance, in a handful of threads.

    lane-host   plugins -> buffer on disk, and the agent's own figures
    lane-NAME   plugins that are read in the child process NAME
    sender      buffer -> portal, or InfluxDB

and those of `collector.portal_talk`. The thread that runs the agent watches the lanes. Many agents
may live in one process: nothing here is global, and signals are the caller's.
"""

import logging
import socket
from dataclasses import replace
from datetime import datetime, timedelta
from threading import Event, Lock

from collector.certificate_care import CertificateCare
from collector.config import AgentConfig
from collector.identity import Identity
from collector.jobs.attempts import AttemptRunner
from collector.jobs.executors import build_executor
from collector.loops import Loop
from collector.own_metrics import OwnMetrics
from collector.portal_talk import OFFLINE_WAIT_SECONDS, PortalTalk
from collector.reading.plugin_host import PluginHost, plugin_plans
from collector.reload import changed_keys, keys_for_restart, live_part
from collector.samples import SampleFlow, push
from collector.sending.delivery import (
    build_buffer,
    build_delivery,
    build_link,
    build_transfer,
)
from collector.standing import Standing
from core.clock import Clock, utc_now
from jobqueue.executors.base import Executor
from plugins.base import PluginContext
from plugins.simulation.appliance import SimulatedAppliance
from plugins.simulation.config import SimulationConfig
from plugins.simulation.history import history
from timeseries.points import Point

log = logging.getLogger(__name__)

SEND_PATIENCE_SECONDS = 60.0
JOIN_SECONDS = 5.0
POLL_JOIN_SECONDS = 1.0


class Agent:
    """One appliance's agent.

    Args:
        config: checked configuration; plugin faults are raised here.
        identity: who this appliance is, from enrolment; None where samples go to an InfluxDB and
            there is no portal.
        clock: the time.
        executor: runs the attempts; chosen by the configuration when left out.
        simulation: the appliance to pretend to be; made when `config.executor` is `simulated`.

    Raises:
        ConfigurationError: a plugin's table has faults.
    """

    def __init__(
        self,
        config: AgentConfig,
        identity: Identity | None,
        *,
        clock: Clock = utc_now,
        executor: Executor | None = None,
        simulation: SimulatedAppliance | None = None,
    ) -> None:
        if simulation is None and config.executor == "simulated":
            simulation = SimulatedAppliance(
                SimulationConfig(seed=_seed(config, identity)), started_at=clock()
            )
        self._config = config
        self._identity = identity
        self._clock = clock
        self._simulation = simulation
        self._reload_lock = Lock()
        self._buffer = build_buffer(config, clock=clock)
        self._delivery = build_delivery(config, identity, self._buffer, clock=clock)
        self._addresses = self._delivery.addresses
        self._sender = self._delivery.sender
        self._certificates = CertificateCare(config, identity, self._delivery, clock=clock)
        self._executor = executor
        if executor is None and identity is not None:
            self._executor = build_executor(config, simulation=simulation, clock=clock)
        self._runner = self._build_runner()
        self._samples = SampleFlow(
            self._buffer, flush_interval_seconds=config.flush_interval_seconds
        )
        plans = list(plugin_plans(config, is_simulated=simulation is not None))
        self._standing = Standing(
            config, plans, simulation=simulation, executor=self._executor, runner=self._runner
        )
        self._host = PluginHost(
            plans,
            self._plugin_context(),
            deliver=self._take_points,
            clock=clock,
            seed=_seed(config, identity),
            chore=self._tend,
        )
        self._own_metrics = OwnMetrics(
            self._host,
            self._buffer,
            self._sender,
            addresses=self._addresses,
            flow=self._samples,
            clock=clock,
            more=self._certificates.figures,
        )
        self._talk = self._build_talk(identity) if identity is not None else None

    @property
    def buffered_points(self) -> int:
        """How many points wait to be sent."""
        return self._buffer.points

    def run(self, stop: Event) -> None:
        """Work until `stop` is set; then put the last samples on disk and return."""
        name = _seed(self._config, self._identity)
        log.info("agent %s speaks to %s", name, self._addresses.current)
        loops = self._loops(stop)
        self._host.start()
        for loop in loops:
            loop.start()
        while not stop.wait(self._host.watch()):
            pass
        self._buffer.stop_waiting()
        self._host.stop()
        self._samples.flush()
        for loop in loops:
            loop.join(POLL_JOIN_SECONDS if loop.is_polling else JOIN_SECONDS)
        if self._executor is not None:
            self._executor.close()
        self._buffer.close()

    def reload(self, config: AgentConfig) -> None:
        """Take over a new configuration without losing a sample or touching an attempt.

        What can't change while the agent runs is named in the log.

        Raises:
            ConfigurationError: a plugin's table has faults; the old configuration stays.
        """
        with self._reload_lock:
            effective = live_part(self._config, config)
            is_simulated = self._simulation is not None
            plans = list(plugin_plans(effective, is_simulated=is_simulated))
            changed = changed_keys(self._config, config)
            for_restart = keys_for_restart(self._config, config)
            self._config = effective
            self._samples.flush_interval_seconds = effective.flush_interval_seconds
            self._host.apply(plans)
        log.info("configuration read again; changed: %s", ", ".join(changed) or "nothing")
        if for_restart:
            log.warning("%s: takes effect after a restart", ", ".join(for_restart))

    def push_history(self, start_at: datetime, end_at: datetime, *, step_seconds: float) -> int:
        """Put a simulated past into the buffer, from where it is sent like any sample.

        Returns:
            How many points there are.

        Raises:
            ValueError: this appliance is not simulated.
        """
        if self._simulation is None:
            raise ValueError("only a simulated appliance has a made-up history")
        step = timedelta(seconds=step_seconds)
        points = history(self._simulation.config, start_at=start_at, end_at=end_at, step=step)
        return push(points, self._buffer)

    def _build_runner(self) -> AttemptRunner | None:
        if self._executor is None:
            return None
        return AttemptRunner(
            self._executor,
            ledger_path=self._config.data_dir / "attempts.json",
            stop_grace_seconds=self._config.stop_grace_seconds,
        )

    def _plugin_context(self) -> PluginContext:
        runner = self._runner
        context = PluginContext(
            simulation=self._simulation,
            docker_url=self._config.docker_url,
            known_gpus=self._standing.health.known_gpus,
            transfer=build_transfer(self._config, self._identity, self._delivery),
            publish_inventory=self._standing.take_inventory,
        )
        if runner is None:
            return context
        return replace(
            context, job_of_gpu=runner.gpu_holders, job_of_container=runner.job_of_container
        )

    def _loops(self, stop: Event) -> list[Loop]:
        loops = [Loop("sender", self._send, stop=stop, at_end=self._sender.close)]
        if (prober := self._delivery.prober) is not None:
            loops.append(Loop("access-points", prober.step, stop=stop, at_end=lambda: None))
        loops += self._certificates.loops(stop)
        return loops + (self._talk.loops(stop) if self._talk is not None else [])

    def _build_talk(self, identity: Identity) -> PortalTalk:
        return PortalTalk(
            lambda: build_link(self._config, identity, self._delivery, clock=self._clock),
            config=lambda: self._config,
            heartbeats=self._standing.heartbeats(self._host, self._buffer, clock=self._clock),
            runner=self._runner,
            samples=self._samples,
            is_offline=self._is_offline,
            clock=self._clock,
        )

    def _take_points(self, points: list[Point]) -> None:
        self._samples.add(points)  # first, for a judge who stumbles must not cost the samples
        self._standing.health.observe(points, self._clock())

    def _tend(self) -> float:
        """Do what goes with the readings: the agent's own figures, its health, and the flush."""
        interval_seconds, health = self._config.own_metrics_interval_seconds, self._standing.health
        try:
            points = health.points_when_due(self._clock(), interval_seconds=interval_seconds)
            self._samples.add(points)
            own_seconds = self._own_metrics.add_when_due(interval_seconds)
        finally:  # whatever is wrong with these, what was read goes to disk
            flush_seconds = self._samples.flush_when_due()
        return min(own_seconds, flush_seconds)

    def _send(self) -> float:
        if not self._buffer.wait_for_frames(SEND_PATIENCE_SECONDS):
            return 0.0
        if self._is_offline():
            return OFFLINE_WAIT_SECONDS
        return self._sender.send_next().wait_seconds

    def _is_offline(self) -> bool:
        return self._simulation is not None and self._simulation.is_offline(self._clock())


def _seed(config: AgentConfig, identity: Identity | None) -> str:
    """Return what tells this agent from others."""
    return identity.appliance_id if identity is not None else config.name or socket.gethostname()
