"""Carries out rollouts: the scheduler starts updates stage by stage, heartbeats report results.

Both lock an appliance before its `ApplianceUpdate`, so that they never wait for each other.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, and_, func, select, update
from sqlalchemy.orm import Session

from core.db import changed_one
from protocol.agent_update import UpdateOrder, UpdateReport, UpdateResult
from protocol.health import HealthState
from tenants.fleet.events import EventKind, add_event
from tenants.fleet.rollouts import update_counts
from tenants.fleet.states import in_service
from tenants.models import (
    AgentRollout,
    Appliance,
    ApplianceState,
    ApplianceUpdate,
    ApplianceUpdateState,
    RolloutState,
)

# Each one downloads 60 MB from the portal.
MAX_CONCURRENT: Final = 20
# The update service gives up after 12 minutes; the order needs a heartbeat, the result another one.
UPDATE_TIMEOUT: Final = timedelta(minutes=15)
_MAX_MESSAGE_LENGTH: Final = 500
_RANKS: Final = {state.value: rank for rank, state in enumerate(HealthState)}
_REPORTING: Final = (ApplianceState.ONLINE, ApplianceState.STALE)


def answer_update(
    session: Session, update_id: str, report: UpdateReport | None, *, version: str, now: datetime
) -> UpdateOrder | None:
    """Record what an agent says of its update; return the order until it has a result.

    Args:
        session: in which the heartbeat was recorded.
        update_id: the appliance's `update_id`.
        report: of the heartbeat.
        version: that the agent runs now.
        now: the time.
    """
    row = session.execute(
        select(ApplianceUpdate, AgentRollout)
        .join(AgentRollout, AgentRollout.id == ApplianceUpdate.rollout_id)
        .where(ApplianceUpdate.id == update_id)
    ).one_or_none()
    if row is None:
        return None
    planned, rollout = row
    is_reported = report is not None and report.update_id == update_id
    if report is None or not is_reported or report.result is UpdateResult.INSTALLING:
        return UpdateOrder(
            update_id=update_id,
            version=rollout.version,
            requirements_sha256=rollout.requirements_sha256,
        )
    if report.result is UpdateResult.FAILED:
        _end(
            session,
            planned,
            ApplianceUpdateState.FAILED,
            report.message or "No reason given.",
            now=now,
        )
    elif version != rollout.version:
        message = f"The update service reports success, but the agent is Vedette {version}."
        _end(session, planned, ApplianceUpdateState.FAILED, message, now=now)
    else:
        _end(session, planned, ApplianceUpdateState.UPDATED, "", now=now)
    return None


def advance_rollouts(session: Session, *, now: datetime) -> None:
    """Fail updates without a result, and start the next ones of all rollouts that run."""
    overdue = select(ApplianceUpdate).where(
        ApplianceUpdate.state == ApplianceUpdateState.UPDATING,
        ApplianceUpdate.started_at < now - UPDATE_TIMEOUT,
    )
    minutes = UPDATE_TIMEOUT.total_seconds() / 60
    for planned in session.scalars(overdue).all():
        message = f"No result within {minutes:.0f} minutes. See journalctl on the host."
        _end(session, planned, ApplianceUpdateState.FAILED, message, now=now)
    running = select(AgentRollout).where(AgentRollout.state == RolloutState.RUNNING)
    for rollout in session.scalars(running.with_for_update()).all():
        _advance(session, rollout, now=now)


def _advance(session: Session, rollout: AgentRollout, *, now: datetime) -> None:
    _fail_unhealthy(session, rollout, now=now)
    counts = update_counts(session, [rollout])[rollout.id]
    failures = counts[ApplianceUpdateState.FAILED] - rollout.accepted_failures
    if failures > rollout.max_failures:
        rollout.state = RolloutState.PAUSED
        rollout.reason = (
            f"{failures} update{'s' if failures > 1 else ''} failed, and the rollout accepts "
            f"{rollout.max_failures}."
        )
        return
    while rollout.state is RolloutState.RUNNING:
        stage = _StageCounts.of(session, rollout)
        if stage.waiting or stage.updating:
            rollout.soaking_since = None
            if _start(session, rollout, room=MAX_CONCURRENT - stage.updating, now=now):
                return
            if stage.updating:
                return
            continue  # all that waited were skipped
        rollout.soaking_since = rollout.soaking_since or now
        # A stage that updated nothing proves nothing, so there is nothing to watch.
        if stage.updated and now - rollout.soaking_since < timedelta(seconds=rollout.soak_seconds):
            return
        rollout.soaking_since = None
        if rollout.stage + 1 < len(rollout.stage_percents):
            rollout.stage += 1
        else:
            rollout.state, rollout.ended_at = RolloutState.COMPLETED, now


@dataclass(frozen=True, slots=True)
class _StageCounts:
    """The numbers of appliances in the current stage of a rollout."""

    waiting: int
    updating: int
    updated: int

    @classmethod
    def of(cls, session: Session, rollout: AgentRollout) -> "_StageCounts":
        """Count them."""
        grouped = (
            select(ApplianceUpdate.state, func.count())
            .where(_in_stage(rollout))
            .group_by(ApplianceUpdate.state)
        )
        counts = {state: count for state, count in session.execute(grouped)}  # noqa: C416 - rows
        return cls(
            waiting=counts.get(ApplianceUpdateState.WAITING, 0),
            updating=counts.get(ApplianceUpdateState.UPDATING, 0),
            updated=counts.get(ApplianceUpdateState.UPDATED, 0),
        )


def _in_stage(rollout: AgentRollout) -> ColumnElement[bool]:
    return and_(ApplianceUpdate.rollout_id == rollout.id, ApplianceUpdate.stage == rollout.stage)


def _start(session: Session, rollout: AgentRollout, *, room: int, now: datetime) -> int:
    """Start updates of the current stage, and skip what isn't online; return how many started."""
    waiting = (
        select(ApplianceUpdate)
        .join(Appliance)
        .where(_in_stage(rollout), ApplianceUpdate.state == ApplianceUpdateState.WAITING)
        .order_by(Appliance.name)
    )
    started = 0
    for planned in session.scalars(waiting).unique().all():
        appliance = planned.appliance
        is_updatable = appliance.state is ApplianceState.ONLINE and appliance.can_update
        if not is_updatable or appliance.retired_at or appliance.revoked_at:
            _finish(
                planned,
                ApplianceUpdateState.SKIPPED,
                "It was not online when its turn came.",
                now=now,
            )
        elif appliance.agent_version == rollout.version:
            _finish(planned, ApplianceUpdateState.SKIPPED, "It was updated otherwise.", now=now)
        elif started < room:
            _supersede(session, appliance.id, now=now)
            session.execute(
                update(Appliance).where(Appliance.id == appliance.id).values(update_id=planned.id),
                execution_options={"synchronize_session": False},
            )
            planned.state, planned.started_at = ApplianceUpdateState.UPDATING, now
            planned.health_before = appliance.health_state.value if appliance.health_state else ""
            started += 1
    session.flush()
    return started


def _supersede(session: Session, appliance_id: str, *, now: datetime) -> None:
    """Fail the update of an earlier rollout: its order is about to be replaced."""
    earlier = update(ApplianceUpdate).where(
        ApplianceUpdate.appliance_id == appliance_id,
        ApplianceUpdate.state == ApplianceUpdateState.UPDATING,
    )
    session.execute(
        earlier.values(
            state=ApplianceUpdateState.FAILED,
            message="It had no result when another rollout began.",
            ended_at=now,
        ),
        execution_options={"synchronize_session": False},
    )


def _fail_unhealthy(session: Session, rollout: AgentRollout, *, now: datetime) -> None:
    """Fail what went silent or got unhealthier in the current stage since its update."""
    updated = (
        select(ApplianceUpdate)
        .join(Appliance)
        .where(
            _in_stage(rollout), ApplianceUpdate.state == ApplianceUpdateState.UPDATED, in_service()
        )
    )
    for planned in session.scalars(updated).unique().all():
        appliance = planned.appliance
        health = appliance.health_state.value if appliance.health_state else ""
        if appliance.state not in _REPORTING:
            message = f"It became {appliance.state.value} after the update."
        elif planned.health_before and _RANKS.get(health, 0) > _RANKS[planned.health_before]:
            message = f"Its health was {planned.health_before}, and is {health} since the update."
        else:
            continue
        _finish(planned, ApplianceUpdateState.FAILED, message, now=now)
    session.flush()


def _end(
    session: Session,
    planned: ApplianceUpdate,
    state: ApplianceUpdateState,
    message: str,
    *,
    now: datetime,
) -> None:
    """End an update that has started."""
    cleared = update(Appliance).where(
        Appliance.id == planned.appliance_id, Appliance.update_id == planned.id
    )
    if not changed_one(session, cleared.values(update_id=None), synchronize_session=False):
        return  # another process ended it
    _finish(planned, state, message, now=now)
    if state is ApplianceUpdateState.FAILED:
        text = f"The update of the agent failed: {message}"
        add_event(session, planned.appliance, EventKind.AGENT, text, now=now)
    session.flush()


def _finish(
    planned: ApplianceUpdate, state: ApplianceUpdateState, message: str, *, now: datetime
) -> None:
    planned.state, planned.message, planned.ended_at = state, message[:_MAX_MESSAGE_LENGTH], now
