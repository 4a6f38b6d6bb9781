"""A portal that verifies appliances, and agents that answer it: honest ones, and liars."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import true

from collector.inventory import simulated_devices, simulated_inventory
from core.clock import to_ns
from core.db import SessionFactory
from core.periodic_tasks import SchedulerContext
from core.settings import ServerSettings
from jobqueue.dispatch.desired_state import challenge_order
from jobqueue.dispatch.observed_state import apply_report
from jobqueue.executors.simulated.challenge import SimulatedChallenges
from marketplace.verification.findings import failures, loaded
from marketplace.verification.gate import begin
from marketplace.verification.tasks import VerificationTasks
from plugins.simulation.config import SimulationConfig
from protocol.challenges import ChallengeOrder, ChallengeResult, DeviceAnswer
from protocol.inventory import Inventory
from tenants.models import Tenant, Verification
from tests.cast import FrozenClock, make_appliance
from timeseries.points import Point
from timeseries.store import Store, write

READINGS = 40
INTERVAL_SECONDS = 10.0


@dataclass
class Agent:
    """An agent of an appliance; liars replace what it says.

    Attributes:
        claimed: what its inventory has.
        real: the GPUs that answer.
    """

    appliance_id: str
    tenant_id: str
    claimed: Inventory
    real: Sequence[DeviceAnswer]
    clock: FrozenClock
    is_idle: bool = False
    joules: dict[str, float] = field(default_factory=dict)

    def answer(self, order: ChallengeOrder) -> ChallengeResult:
        """Return the answer of its real GPUs."""
        quick = msgspec.structs.replace(order, busy_seconds=0.0)
        result = SimulatedChallenges(self.clock, lambda: self.real).run(quick)
        assert result.answer is not None
        answer = msgspec.structs.replace(
            result.answer, boot_id=self.claimed.boot_id, seconds=order.busy_seconds
        )
        return msgspec.structs.replace(result, answer=answer)

    def samples(self, at: datetime, *, is_busy: bool) -> list[Point]:
        """Return the readings of its GPUs at a time."""
        points = []
        for index, gpu in enumerate(self.claimed.gpus):
            second = at.timestamp()
            power = (620.0 if is_busy else 72.0) + round(
                5 * math.sin(second * second * (index + 1.7)), 1
            )
            before = self.joules.get(gpu.uuid, 1e6)
            self.joules[gpu.uuid] = before + power * INTERVAL_SECONDS
            fields = {
                "power_watts": power,
                "energy_joules": round(self.joules[gpu.uuid], 1),
                "utilization_percent": 98.0 if is_busy and not self.is_idle else 0.0,
            }
            points.append(Point("gpu", {"uuid": gpu.uuid}, fields, to_ns(at)))
        return points


@dataclass
class Verifying:
    """A portal with its scheduler, and the passing of time."""

    sessions: SessionFactory
    store: Store
    clock: FrozenClock
    settings: ServerSettings

    @property
    def tasks(self) -> VerificationTasks:
        context = SchedulerContext(
            sessions=self.sessions,
            clock=self.clock,
            listening_since=self.clock.now,
            is_active=lambda: True,
            has_lease=true(),
            is_stopping=lambda: False,
            run_soon=lambda _task: None,
        )
        return VerificationTasks(self.settings, context, self.store)

    def agent(
        self,
        tenant: Tenant,
        name: str,
        *,
        config: SimulationConfig | None = None,
        real: Sequence[DeviceAnswer] | None = None,
        kind: Callable[..., Agent] = Agent,
        **changes: Any,  # noqa: ANN401 - fields of the inventory
    ) -> Agent:
        """Enroll an appliance that an offer covers, which claims the GPUs of a simulation."""
        config = config or SimulationConfig(seed=f"{tenant.slug}/{name}")
        claimed = msgspec.structs.replace(
            simulated_inventory(config, executors=["simulated"]),
            can_challenge=True,
            boot_id=f"boot-{name}",
            **changes,
        )
        with self.sessions.begin() as session:
            appliance = make_appliance(
                session, tenant, name, now=self.clock.now, inventory=msgspec.to_builtins(claimed)
            )
            begin(session, tenant.id, [appliance.id], now=self.clock.now)
        devices = simulated_devices(config) if real is None else real
        return kind(appliance.id, tenant.id, claimed, devices, self.clock)

    def write(self, agent: Agent, points: Sequence[Point]) -> None:
        """Store samples of an agent."""
        identity = {"tenant": agent.tenant_id, "appliance": agent.appliance_id}
        write(self.store, points, identity=identity)

    def send_history(self, agent: Agent) -> None:
        """Store samples of the last minutes."""
        start_at = self.clock.now - timedelta(seconds=READINGS * INTERVAL_SECONDS)
        points: list[Point] = []
        for number in range(READINGS):
            at = start_at + timedelta(seconds=number * INTERVAL_SECONDS)
            points += agent.samples(at, is_busy=False)
        self.write(agent, points)

    def challenge(self, *agents: Agent) -> None:
        """Order what is due, let agents answer, and decide."""
        self.tasks.verify_appliances()
        orders = {agent.appliance_id: self.order(agent) for agent in agents}
        for _ in range(3):
            self.clock.advance(INTERVAL_SECONDS)
            for agent in agents:
                self.write(agent, agent.samples(self.clock.now, is_busy=True))
        for agent in agents:
            order = orders[agent.appliance_id]
            assert order is not None, agent.appliance_id
            self.report(agent, agent.answer(order))
        self.clock.advance(60)
        self.tasks.verify_appliances()

    def report(self, agent: Agent, result: ChallengeResult) -> None:
        """Send a result, as the agent does with its attempts."""
        with self.sessions.begin() as session:
            apply_report(session, agent.appliance_id, [], challenge=result, now=self.clock.now)

    def order(self, agent: Agent) -> ChallengeOrder | None:
        """Return what the agent should answer."""
        with self.sessions() as session:
            return challenge_order(session, agent.appliance_id)

    def row(self, agent: Agent) -> Verification:
        """Return what is known of an appliance."""
        with self.sessions() as session:
            return session.get_one(Verification, agent.appliance_id)

    def signs(self, agent: Agent) -> set[str]:
        """Return the codes of what an appliance fails for."""
        return {finding.code for finding in failures(loaded(self.row(agent).findings))}

    def due(self, *agents: Agent) -> None:
        """Let the next challenges be due."""
        with self.sessions.begin() as session:
            for agent in agents:
                row = session.get_one(Verification, agent.appliance_id)
                row.next_at = self.clock.now
                row.checked_at = None


def smaller(
    devices: Sequence[DeviceAnswer],
    **changes: Any,  # noqa: ANN401 - their fields
) -> list[DeviceAnswer]:
    """Return GPUs that are less than others."""
    return [msgspec.structs.replace(device, **changes) for device in devices]
