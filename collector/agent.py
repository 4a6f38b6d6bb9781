"""The agent: everything that runs on an appliance, in a handful of threads.

    samples     plugins -> buffer on disk
    sender      buffer -> portal
    heartbeat   alive, with the inventory
    desired     long poll: what should run here?
    attempts    executor <- desired state; observations and logs -> portal

Many agents may live in one process: nothing here is global, and signals are the caller's.
"""

import logging
import time
from datetime import datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from threading import Event

from collector.addresses import PortalAddresses
from collector.attempts import AttemptRunner
from collector.buffer import DiskBuffer
from collector.config import AgentConfig
from collector.executors import build_executor
from collector.identity import Identity
from collector.inventory import host_inventory, simulated_inventory
from collector.link import PortalLink
from collector.loops import Loop
from collector.plugin_host import PluginHost, build_plugins
from collector.samples import SampleFlow, frames_of
from collector.sender import Sender
from core.clock import Clock, to_ns, utc_now
from jobqueue.executors.base import Executor
from jobqueue.executors.wire import Heartbeat, Inventory
from plugins.base import PluginContext
from plugins.simulation.appliance import SimulatedAppliance
from plugins.simulation.config import SimulationConfig
from plugins.simulation.history import history
from timeseries.points import Point

log = logging.getLogger(__name__)

INVENTORY_EVERY = timedelta(minutes=1)
OFFLINE_WAIT_SECONDS = 1.0
HEARTBEAT_LOOK_SECONDS = 1.0
NO_NEWS_WAIT_SECONDS = 1.0
JOIN_SECONDS = 5.0
POLL_JOIN_SECONDS = 1.0


class Agent:
    """One appliance's agent.

    Args:
        config: checked configuration; plugin faults are raised here.
        identity: who this appliance is, from enrolment.
        clock: the time.
        executor: runs the attempts; chosen by the configuration when left out.
        simulation: the appliance to pretend to be; made when `config.executor` is `simulated`.

    Raises:
        ConfigurationError: a plugin's table has faults.
    """

    def __init__(
        self,
        config: AgentConfig,
        identity: Identity,
        *,
        clock: Clock = utc_now,
        executor: Executor | None = None,
        simulation: SimulatedAppliance | None = None,
    ) -> None:
        if simulation is None and config.executor == "simulated":
            simulation = SimulatedAppliance(
                SimulationConfig(seed=identity.appliance_id), started_at=clock()
            )
        self._config = config
        self._identity = identity
        self._clock = clock
        self._simulation = simulation
        self._addresses = PortalAddresses(config.portal_urls)
        self._buffer = DiskBuffer(
            config.data_dir / "buffer",
            max_bytes=config.buffer_max_bytes,
            max_age_seconds=config.buffer_max_age_seconds,
            clock=clock,
        )
        self._executor = executor or build_executor(config, simulation=simulation, clock=clock)
        self._runner = self._build_runner()
        self._host = PluginHost(
            build_plugins(config, PluginContext(simulation)),
            gpu_holders=self._runner.gpu_holders if self._runner else dict,
        )
        self._sender = Sender(
            self._buffer,
            self._addresses,
            agent_token=identity.agent_token,
            clock=clock,
            timeout_seconds=config.request_timeout_seconds,
        )
        self._samples = SampleFlow(
            self._host, self._buffer, flush_interval_seconds=config.flush_interval_seconds
        )
        self._own_due_at: datetime | None = None
        self._inventory: Inventory | None = None
        self._inventory_at: datetime | None = None
        self._beat_at: datetime | None = None
        self._beat_executors: list[str] = []

    @property
    def buffered_points(self) -> int:
        """How many points wait to be sent."""
        return self._buffer.points

    def run(self, stop: Event) -> None:
        """Work until `stop` is set; then put the last samples on disk and return."""
        log.info("agent %s speaks to %s", self._identity.appliance_id, self._addresses.current)
        loops = self._loops(stop)
        for loop in loops:
            loop.start()
        stop.wait()
        for loop in loops:
            loop.join(POLL_JOIN_SECONDS if loop.is_polling else JOIN_SECONDS)
        self._host.close()
        if self._executor is not None:
            self._executor.close()

    def push_history(self, start_at: datetime, end_at: datetime, *, step_seconds: float) -> int:
        """Put a simulated past into the buffer, from where it is sent like any sample.

        Returns:
            How many points there are.

        Raises:
            ValueError: this appliance is not simulated.
        """
        if self._simulation is None:
            raise ValueError("only a simulated appliance has a made-up history")
        points = history(
            self._simulation.config,
            start_at=start_at,
            end_at=end_at,
            step=timedelta(seconds=step_seconds),
        )
        pushed = 0
        for frame in frames_of(points):
            self._buffer.append(frame)
            pushed += frame.points
        return pushed

    def _build_runner(self) -> AttemptRunner | None:
        if self._executor is None:
            return None
        return AttemptRunner(
            self._executor,
            ledger_path=self._config.data_dir / "attempts.json",
            stop_grace_seconds=self._config.stop_grace_seconds,
        )

    def _loops(self, stop: Event) -> list[Loop]:
        beats, polls, attempts = self._open_link(), self._open_link(), self._open_link()
        loops = [
            Loop("samples", self._sample, stop=stop, at_end=self._samples.flush),
            Loop("sender", self._send, stop=stop, at_end=self._sender.close),
            Loop("heartbeat", lambda: self._beat(beats), stop=stop, at_end=beats.close),
        ]
        if (runner := self._runner) is not None:
            loops += [
                Loop(
                    "attempts",
                    lambda: self._run_attempts(runner, attempts),
                    stop=stop,
                    at_end=attempts.close,
                ),
                Loop(
                    "desired",
                    lambda: self._poll(runner, polls),
                    stop=stop,
                    at_end=polls.close,
                    is_polling=True,
                ),
            ]
        return loops

    def _open_link(self) -> PortalLink:
        return PortalLink(
            self._addresses,
            agent_token=self._identity.agent_token,
            timeout_seconds=self._config.request_timeout_seconds,
        )

    def _sample(self) -> float:
        now = self._clock()
        if self._own_due_at is None or now >= self._own_due_at:
            self._own_due_at = now + timedelta(seconds=self._config.interval_seconds)
            self._samples.add([self._own_point(now)])
            if self._runner is not None:
                self._samples.add(self._runner.usage_points(now))
        return self._samples.step(now)

    def _own_point(self, now: datetime) -> Point:
        fields = {
            "buffered_bytes": self._buffer.size_bytes,
            "buffered_points": self._buffer.points,
            "dropped_points": self._buffer.dropped_points,
            "sent_points": self._sender.counters.sent_points,
            "send_failures": self._sender.counters.failures,
            "gather_failures": self._host.gather_failures,
        }
        return Point("agent", {}, fields, to_ns(now))

    def _send(self) -> float:
        if self._is_offline():
            return OFFLINE_WAIT_SECONDS
        return self._sender.send_next().wait_seconds

    def _beat(self, link: PortalLink) -> float:
        """Send a heartbeat when one is due, or when what can run jobs here has changed."""
        now, executors = self._clock(), self._executor_names()
        interval = timedelta(seconds=self._config.heartbeat_interval_seconds)
        is_due = self._beat_at is None or now - self._beat_at >= interval
        if self._is_offline() or not (is_due or executors != self._beat_executors):
            return HEARTBEAT_LOOK_SECONDS
        link.heartbeat(
            Heartbeat(
                agent_version=_agent_version(),
                sent_at_ns=to_ns(now),
                inventory=self._current_inventory(now, executors),
                buffered_points=self._buffer.points,
                dropped_points=self._buffer.dropped_points,
            )
        )
        self._beat_at, self._beat_executors = now, executors
        return HEARTBEAT_LOOK_SECONDS

    def _poll(self, runner: AttemptRunner, link: PortalLink) -> float:
        if self._is_offline():
            return OFFLINE_WAIT_SECONDS
        asked_at, generation = time.monotonic(), runner.generation
        desired = link.desired(generation, wait_seconds=self._config.poll_wait_seconds)
        if desired is not None:
            runner.take_desired(desired)
        is_news = runner.generation != generation
        was_held = time.monotonic() - asked_at >= NO_NEWS_WAIT_SECONDS
        return 0.0 if is_news or was_held else NO_NEWS_WAIT_SECONDS

    def _run_attempts(self, runner: AttemptRunner, link: PortalLink) -> float:
        runner.step()
        if not self._is_offline():
            # The output goes first: who reads that an attempt has ended can read its last line.
            runner.ship_logs(link)
            runner.report(link, self._clock())
        return self._config.attempts_interval_seconds

    def _is_offline(self) -> bool:
        return self._simulation is not None and self._simulation.is_offline(self._clock())

    def _executor_names(self) -> list[str]:
        if self._executor is None or self._runner is None or self._runner.is_engine_away:
            return []
        return [self._executor.name]

    def _current_inventory(self, now: datetime, executors: list[str]) -> Inventory:
        """Return the inventory, looked at anew every minute or when the executors changed."""
        is_old = self._inventory_at is None or now - self._inventory_at >= INVENTORY_EVERY
        if self._inventory is None or is_old or self._inventory.executors != executors:
            self._inventory_at = now
            self._inventory = (
                simulated_inventory(self._simulation.config, executors=executors)
                if self._simulation is not None
                else host_inventory(executors=executors)
            )
        return self._inventory


def _agent_version() -> str:
    try:
        return version("vedette")
    except PackageNotFoundError:  # a checkout that is not installed
        return "unknown"
