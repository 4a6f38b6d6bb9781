"""The attempt runner: makes the executor match the desired state, and reports what it observes.

`attempts.json` stores the desired state and how attempts ended. Without it, an attempt that ended
while the portal was unreachable could be started a second time.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event, Lock, Thread

import msgspec

from collector.data_dir import load_json, save_json
from collector.datasets.credentials import without_credentials
from collector.gpu_slices.base import GPUSlices, SliceError
from collector.jobs.challenges import ChallengeRuns, Connect
from collector.jobs.cluster_samples import ClusterSamples
from collector.jobs.log_shipping import LogShipper
from collector.jobs.preparations import Preparation, PreparationError, Preparations, failed
from collector.jobs.reconcile import (
    Action,
    Forget,
    Mark,
    Remove,
    Start,
    Stop,
    left_behind,
    reconcile,
)
from collector.jobs.slices import (
    Allocation,
    AttemptSlices,
    allocations_of,
    slice_failed,
    with_slice,
    with_uuid,
    with_uuids,
)
from collector.results.metrics import PrintedMetrics
from collector.sending.portal_connection import PortalConnection
from core.clock import Clock, to_ns, utc_now
from jobqueue.executors.base import (
    ExecSession,
    Executor,
    ExecutorError,
    ExecutorUnavailableError,
    NoExecError,
    Probe,
)
from jobqueue.executors.registry_token import CurrentRegistryToken
from protocol.attempts import (
    AttemptObservation,
    AttemptSpec,
    DesiredState,
    ObservedReport,
    ObservedState,
    ProbeOrder,
    ProbeResult,
)
from timeseries.points import Point

log = logging.getLogger(__name__)

REPORT_INTERVAL = timedelta(seconds=10)
# Reports, logs and stops wait for a step, and an executor may take long to accept an attempt.
START_SECONDS = 2.0


class AttemptState(msgspec.Struct):
    """The state that survives a restart.

    Attributes:
        desired: the last one.
        remembered: the last observation of each attempt.
        allocations: what each attempt has.
        probe: the result of the last one.
        executors: the names of the executor that has them.
    """

    desired: DesiredState | None = None
    remembered: dict[str, AttemptObservation] = {}
    allocations: dict[str, Allocation] = {}
    probe: ProbeResult | None = None
    executors: list[str] = []


class AttemptRunner:
    """Runs attempts on one executor.

    `step`, `report` and `ship_logs` belong to one thread; `set_desired`, `job_of_gpu`,
    `job_of_container`, `endpoint`, `execute` and `usage_points` may be called from others.

    Attributes:
        step_wanted: set when the desired state has changed, until the next step.
        tunnel_wanted: set while the portal wants a tunnel.
        challenges: runs those that the portal orders.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        state_path: Path,
        stop_grace_seconds: float = 10.0,
        registry_token: CurrentRegistryToken | None = None,
        slices: GPUSlices | None = None,
        preparations: Sequence[Preparation] = (),
        on_desired: Callable[[DesiredState], None] = lambda _: None,
        add_points: Callable[[list[Point]], object] = list,
        transfers: Connect | None = None,
        clock: Clock = utc_now,
    ) -> None:
        self._executor = executor
        self._on_desired = on_desired
        self._clock = clock
        self._state_path = state_path
        self._stop_grace_seconds = stop_grace_seconds
        self._registry_token = registry_token or CurrentRegistryToken()
        self._has_polled = False
        self._lock = Lock()
        self._state = load_json(state_path, AttemptState) or AttemptState()
        before, self._state.executors = self._state.executors, list(executor.names)
        if before and set(before).isdisjoint(executor.names):
            self._state.remembered = left_behind(self._state.remembered, before)
        if (desired := self._state.desired) is not None and not self._state.allocations:
            # The agent that stored the state knew no allocations.
            self._state.allocations = allocations_of(desired, {}, listed=())
        self._shipper = LogShipper(executor, self._on_output)
        self._cluster_samples = ClusterSamples(executor)
        self._printed = PrintedMetrics(add_points)
        self._observed: dict[str, AttemptObservation] = {}
        self._refused: dict[str, AttemptObservation] = {}
        self._probing: Thread | None = None
        self._reported: ObservedReport | None = None
        self._reported_at: datetime | None = None
        self._is_available = False
        self._has_observed = False
        # The state that the last run stored may be old: the portal sends the desired state again.
        self.tunnel_wanted = Event()
        self.step_wanted = Event()
        self._slices = AttemptSlices(slices, wake=self.step_wanted.set)
        self._preparations = Preparations(preparations)
        self.challenges = ChallengeRuns(
            executor.challenges(), connect=transfers, wake=self.step_wanted.set
        )

    @property
    def generation(self) -> int:
        """The generation of the last desired state; -1 before the first since the start.

        What was stored has no token for the registry.
        """
        with self._lock:
            desired = self._state.desired if self._has_polled else None
            return desired.generation if desired else -1

    @property
    def is_available(self) -> bool:
        """Return whether the executor responded to the last request."""
        return self._is_available

    @property
    def is_running(self) -> bool:
        """Return whether an attempt was running at the last step."""
        return any(seen.state is ObservedState.RUNNING for seen in self._observed.values())

    @property
    def storage_generation(self) -> int:
        """The number of container storage reports that the portal has requested."""
        with self._lock:
            return self._state.desired.storage_generation if self._state.desired else 0

    def desired_images(self) -> set[str]:
        """Return the images of the attempts that should run."""
        return {spec.image for spec in self._desired_attempts()}

    def set_desired(self, desired: DesiredState) -> None:
        """Set the desired state for the next step."""
        self._registry_token.set(desired.registry, desired.attempts)
        try:
            self._on_desired(desired)
        except Exception:  # attempts must start and stop, whatever becomes of datasets
            log.exception("the orders of datasets can't be followed")
        desired = without_credentials(msgspec.structs.replace(desired, registry=None))
        with self._lock:
            self._has_polled = True
            (self.tunnel_wanted.set if desired.wants_tunnel else self.tunnel_wanted.clear)()
            if desired != self._state.desired:
                self._state.desired = desired
                listed = {*self._state.remembered, *desired.stopping}
                self._state.allocations = allocations_of(
                    desired, self._state.allocations, listed=listed
                )
                save_json(self._state_path, self._state)
                self.step_wanted.set()

    def step(self) -> None:
        """Observe the executor and reconcile it with the desired state."""
        self.step_wanted.clear()
        try:
            observed = self._executor.observe()
        except ExecutorUnavailableError as error:
            if self._is_available:
                log.warning("executor %s is not available: %s", self._executor.name, error)
            self._is_available = False
            return
        except ExecutorError as error:
            log.warning("executor %s: %s", self._executor.name, error)
            return
        if not self._is_available:
            log.info("executor %s is available", self._executor.name)
        self._is_available = self._has_observed = True
        observed = self._slices.review(observed, self._executor.container_ids())
        self._preparations.update(self._desired_attempts(), {seen.attempt_id for seen in observed})
        observed = self._preparations.review(observed)
        with self._lock:
            self._observed = with_uuids(observed, self._state.allocations)
            self._remember(self._observed)
            desired = self._state.desired
            remembered = dict(self._state.remembered)
        if desired is not None:
            self._slices.settle(
                desired.gpu_partitions,
                self._state.allocations,
                {**self._observed, **remembered},
                self._clock(),
            )
            actions = reconcile(
                desired,
                self._observed,
                remembered=remembered,
                delivered_logs=self._shipper.delivered,
                now_ns=to_ns(self._clock()),
            )
            starting = {action.spec.attempt_id for action in actions if isinstance(action, Start)}
            self._slices.forget_all_but(starting)
            self._refused = {key: seen for key, seen in self._refused.items() if key in starting}
            is_running = any(not seen.state.is_final for seen in observed)
            self.challenges.follow(
                desired.challenge if self._has_polled else None,
                has_attempts=bool(desired.attempts) or is_running,
            )
            self._execute_all(actions)
            listed = {spec.attempt_id for spec in desired.attempts}
            self._preparations.keep_only(
                starting, listed | {*desired.stopping} | self._observed.keys()
            )
            self._probe(desired.probe)

    def _probe(self, order: ProbeOrder | None) -> None:
        """Run an ordered probe in the background, unless it was answered already."""
        run, answered = self._executor.probe(), self._state.probe
        is_busy = self._probing is not None and self._probing.is_alive()
        if order is None or run is None or is_busy:
            return
        if answered is None or answered.number != order.number:
            self._probing = Thread(
                target=self._run_probe, args=(run, order), name="probe", daemon=True
            )
            self._probing.start()

    def _run_probe(self, run: Probe, order: ProbeOrder) -> None:
        result = ProbeResult(number=order.number, problem=run(order))
        log.info("probe %d: %s", order.number, result.problem or "its container has run")
        with self._lock:
            self._state.probe = result
            save_json(self._state_path, self._state)
        self.step_wanted.set()

    def report(self, portal: PortalConnection, now: datetime) -> None:
        """Report the attempts after every change, and every ten seconds.

        Raises:
            PortalUnreachableError: the next call reports again.
        """
        if not self._has_observed:
            return  # an empty report would say that nothing runs
        with self._lock:
            order = self._state.desired.challenge if self._state.desired else None
        observed = ObservedReport(
            attempts=self._known(),
            probe=self._state.probe,
            challenge=self.challenges.result_of(order),
        )
        is_due = self._reported_at is None or now - self._reported_at >= REPORT_INTERVAL
        if observed == self._reported and not is_due:
            return
        portal.report(observed)
        self._reported, self._reported_at = observed, now

    def ship_logs(self, portal: PortalConnection) -> None:
        """Send new output of attempts.

        Raises:
            PortalUnreachableError: the next call continues from there.
        """
        self._shipper.ship(portal, list(self._observed.values()))

    def job_of_gpu(self) -> Mapping[str, str]:
        """Return GPU UUID to job id, for running attempts.

        Readings of a GPU that several attempts share by MPS or by turns belong to no job, and those
        of a MIG instance, which is here in place of its GPU, to its own.
        """
        observed, allocations = self._observed, self._state.allocations
        return {
            uuid: own.job_id
            for attempt_id, own in allocations.items()
            if (seen := observed.get(attempt_id)) and seen.state is ObservedState.RUNNING
            for uuid in own.attributed_uuids
        }

    def job_of_container(self) -> Mapping[str, str]:
        """Return container id to job id, for attempts that have not ended."""
        observed, allocations = self._observed, self._state.allocations
        return {
            container_id: allocations[attempt_id].job_id
            for container_id, attempt_id in self._executor.container_ids().items()
            if attempt_id in allocations
            and (seen := observed.get(attempt_id)) is not None
            and not seen.state.is_final
        }

    def endpoint(self, attempt_id: str, port: int) -> str | None:
        """Return where a port of a running attempt listens, such as `127.0.0.1:49153`."""
        seen = self._observed.get(attempt_id)
        spec = next(
            (attempt for attempt in self._desired_attempts() if attempt.attempt_id == attempt_id),
            None,
        )
        if seen is None or spec is None or seen.state is not ObservedState.RUNNING:
            return None
        names = [
            spec_port.name or str(port)
            for spec_port in spec.ports
            if spec_port.container_port == port
        ]
        return seen.endpoints.get(names[0]) if names else None

    async def execute(self, attempt_id: str, session: ExecSession) -> int:
        """Run a user's command in an attempt of this appliance that runs."""
        seen = self._observed.get(attempt_id)
        if seen is None or seen.state is not ObservedState.RUNNING:
            raise NoExecError("The job does not run on this appliance now.")
        return await self._executor.execute(attempt_id, session)

    def usage_points(self, now: datetime) -> list[Point]:
        """Return a point for each running attempt, and one for its simulated container.

        A connector has points of its cluster, too.
        """
        points = self._cluster_samples.points(now)
        for spec in self._desired_attempts():
            try:
                usage = self._executor.usage(spec.attempt_id)
            except ExecutorError:
                continue  # the next step logs it once
            if usage is not None:
                tags = {"job": spec.job_id, "attempt": spec.attempt_id}
                fields = {"cpu_percent": usage.cpu_percent, "memory_bytes": usage.memory_bytes}
                points.append(Point("attempt", tags, fields, to_ns(now)))
                if usage.container:
                    tags = {"container": f"simulated-{spec.attempt_id}", "job": spec.job_id}
                    points.append(Point("container", tags, dict(usage.container), to_ns(now)))
        return points

    def _desired_attempts(self) -> list[AttemptSpec]:
        with self._lock:
            return self._state.desired.attempts if self._state.desired else []

    def _known(self) -> list[AttemptObservation]:
        """Return the observed attempts, and how those ended that are gone from the executor."""
        with self._lock:
            ended = {
                attempt_id: observation
                for attempt_id, observation in self._state.remembered.items()
                if observation.state.is_final
            }
        waiting = {**self._refused, **self._preparations.observations()}
        merged = {**waiting, **self._observed, **ended}
        return [merged[attempt_id] for attempt_id in sorted(merged)]

    def _remember(self, observed: Mapping[str, AttemptObservation]) -> None:
        """Store the last state of each attempt; a final state never changes."""
        is_changed = False
        for attempt_id, seen in observed.items():
            remembered = self._state.remembered.get(attempt_id)
            if remembered == seen or (remembered is not None and remembered.state.is_final):
                continue
            self._state.remembered[attempt_id] = seen
            is_changed = True
        if is_changed:
            save_json(self._state_path, self._state)

    def _execute_all(self, actions: Sequence[Action]) -> None:
        """Execute actions; starts come last, and those that would take too long in a later step."""
        until = time.monotonic() + START_SECONDS
        for action in sorted(actions, key=lambda action: isinstance(action, Start)):
            if isinstance(action, Start) and time.monotonic() >= until:
                self.step_wanted.set()
                return
            self._execute(action)

    def _execute(self, action: Action) -> None:
        try:
            match action:
                case Start(spec):
                    self._start(spec)
                case Stop(attempt_id, reason):
                    grace_seconds = self._stop_grace_seconds
                    self._executor.stop(attempt_id, grace_seconds=grace_seconds, reason=reason)
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

    def _start(self, spec: AttemptSpec) -> None:
        """Start an attempt once its slice, data and network are there."""
        if spec.gpu_slice is not None:
            try:
                access = self._slices.prepared(spec.attempt_id, spec.gpu_slice)
            except SliceError as error:
                self._mark(slice_failed(spec.attempt_id, str(error)))
                return
            if access is None:
                return  # a later step starts it
            self._store_uuid(spec.attempt_id, access.slice_uuid)
            spec = with_slice(spec, access)
        try:
            prepared = self._preparations.prepared(spec)
        except PreparationError as error:
            self._mark(failed(spec.attempt_id, error))
            return
        if prepared is None:
            return  # a later step starts it
        log.info("attempt %s (%s) should run", spec.attempt_id, spec.name)
        try:
            self._executor.start(prepared)
        except ExecutorError as error:
            # The job says why it waits: a later step tries again.
            self._refused[spec.attempt_id] = AttemptObservation(
                attempt_id=spec.attempt_id,
                state=ObservedState.STARTING,
                message=f"Not started yet: {error}",
            )
            raise
        self._refused.pop(spec.attempt_id, None)

    def _mark(self, observation: AttemptObservation) -> None:
        with self._lock:
            self._state.remembered[observation.attempt_id] = observation
            save_json(self._state_path, self._state)

    def _store_uuid(self, attempt_id: str, slice_uuid: str) -> None:
        """Store the UUID of an instance, so that it is reported after a restart, too."""
        with self._lock:
            allocations = self._state.allocations
            own = allocations.get(attempt_id)
            if own is not None and (made := with_uuid(own, slice_uuid)) != own:
                self._state.allocations = {**allocations, attempt_id: made}
                save_json(self._state_path, self._state)

    def close(self) -> None:
        """End what prepares attempts; what they use stays."""
        self.challenges.close()
        self._slices.close()
        self._preparations.close()

    def _on_output(self, attempt_id: str, records: bytes) -> None:
        own = self._state.allocations.get(attempt_id)
        if own is not None:
            self._printed.read(attempt_id, own.job_id, records)

    def _forget(self, attempt_id: str) -> None:
        self._printed.forget(attempt_id)
        self._shipper.forget(attempt_id)
        with self._lock:
            allocations = self._state.allocations
            self._state.allocations = {
                key: own for key, own in allocations.items() if key != attempt_id
            }
            if self._state.remembered.pop(attempt_id, None) is not None:
                save_json(self._state_path, self._state)
