"""Rollouts: a tenant updates its agents to the portal's version, a share of each site at a time.

`tenants.fleet.rollout_progress` carries them out.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from itertools import pairwise
from typing import Any, Final, Unpack

from sqlalchemy import ColumnElement, Row, case, func, select, update
from sqlalchemy.orm import Session

from core.errors import ConflictError
from core.ids import new_id
from core.paging import Columns, Page, Paging, list_page
from core.quantities import format_duration
from tenants.checks import raise_if_invalid
from tenants.fleet.states import WITHOUT_AGENT, has_no_connector, in_service
from tenants.models import (
    AgentRollout,
    Appliance,
    ApplianceUpdate,
    ApplianceUpdateState,
    RolloutState,
    Tenant,
)
from tenants.permissions import Permission
from tenants.scope import Scope

ROLLOUT_SORTS: Columns = {"created_at": AgentRollout.created_at, "state": AgentRollout.state}
UPDATE_SORTS: Columns = {
    "stage": ApplianceUpdate.stage,
    "state": ApplianceUpdate.state,
    "name": Appliance.name,
}
DEFAULT_STAGE_PERCENTS: Final = (10, 50, 100)
DEFAULT_SOAK_SECONDS: Final = 900
MAX_STAGES: Final = 10
MAX_SOAK_SECONDS: Final = 7 * 86_400
MAX_SITES: Final = 200
MAX_VERSIONS: Final = 50
NO_UPDATE_SERVICE: Final = (
    "The host has no update service. Run the portal's install line there, or update it by Ansible."
)
_ACTIVE: Final = (RolloutState.RUNNING, RolloutState.PAUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRequest:
    """A rollout to start.

    Attributes:
        sites: the sites to update; all if empty.
        stage_percents: the shares of each site that are updated after each stage; ends with 100.
        soak_seconds: how long the appliances of a stage must stay healthy before the next.
        max_failures: how many failed updates don't pause the rollout.
    """

    sites: Sequence[str] = ()
    stage_percents: Sequence[int] = DEFAULT_STAGE_PERCENTS
    soak_seconds: int = DEFAULT_SOAK_SECONDS
    max_failures: int = 0


@dataclass(frozen=True, slots=True)
class AgentPackages:
    """The packages that the portal installs agents from: version, and SHA-256 of their list."""

    version: str
    requirements_sha256: str


def start_rollout(
    session: Session,
    scope: Scope,
    request: RolloutRequest,
    *,
    packages: AgentPackages | None,
    now: datetime,
) -> AgentRollout:
    """Start a rollout of the portal's packages.

    Raises:
        InvalidInputError: names each invalid field.
        ConflictError: the portal has no packages, another rollout is active, or nothing is older.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    tenant_id = scope.require_tenant()
    raise_if_invalid(_errors(request), "The rollout can't be started")
    if packages is None:
        raise ConflictError(
            "This portal has no packages for appliances. Ask an operator to run: "
            "vedette wheelhouse build",
            code="no_packages",
        )
    _refuse_second(session, tenant_id)
    outdated = _outdated(session, tenant_id, request.sites, version=packages.version)
    if not outdated:
        raise ConflictError(
            f"All agents{' of these sites' if request.sites else ''} are Vedette "
            f"{packages.version} already.",
            code="up_to_date",
        )
    rollout = AgentRollout(
        id=new_id(),
        tenant_id=tenant_id,
        version=packages.version,
        requirements_sha256=packages.requirements_sha256,
        sites=sorted(set(request.sites)),
        stage_percents=list(request.stage_percents),
        soak_seconds=request.soak_seconds,
        max_failures=request.max_failures,
        state=RolloutState.RUNNING,
        created_by=scope.user_id,
        created_at=now,
    )
    session.add(rollout)
    session.flush()
    session.add_all(_planned(rollout, outdated))
    session.flush()
    return rollout


def list_rollouts(session: Session, scope: Scope, **paging: Unpack[Paging]) -> Page[AgentRollout]:
    """Return the rollouts, the newest first."""
    scope.require(Permission.VIEW)
    statement = scope.select(select(AgentRollout), AgentRollout)
    statement = statement.order_by(AgentRollout.created_at.desc(), AgentRollout.id.desc())
    return list_page(session, statement, ROLLOUT_SORTS, last=AgentRollout.id, **paging)


def get_rollout(session: Session, scope: Scope, rollout_id: str) -> AgentRollout:
    """Return a rollout."""
    scope.require(Permission.VIEW)
    return scope.get(session, AgentRollout, rollout_id, kind="rollout")


def list_updates(
    session: Session,
    scope: Scope,
    rollout_id: str,
    *,
    state: ApplianceUpdateState | None = None,
    **paging: Unpack[Paging],
) -> Page[ApplianceUpdate]:
    """Return the appliances of a rollout, in the order of its stages."""
    rollout = get_rollout(session, scope, rollout_id)
    statement = (
        select(ApplianceUpdate).join(Appliance).where(ApplianceUpdate.rollout_id == rollout.id)
    )
    if state is not None:
        statement = statement.where(ApplianceUpdate.state == state)
    statement = statement.order_by(ApplianceUpdate.stage, Appliance.name, ApplianceUpdate.id)
    return list_page(session, statement, UPDATE_SORTS, last=ApplianceUpdate.id, **paging)


def update_counts(
    session: Session, rollouts: Iterable[AgentRollout]
) -> dict[str, dict[ApplianceUpdateState, int]]:
    """Return how many appliances of each rollout are in each state, by the rollout's id."""
    idents = [rollout.id for rollout in rollouts]
    counts = {ident: dict.fromkeys(ApplianceUpdateState, 0) for ident in idents}
    grouped = (
        select(ApplianceUpdate.rollout_id, ApplianceUpdate.state, func.count())
        .where(ApplianceUpdate.rollout_id.in_(idents))
        .group_by(ApplianceUpdate.rollout_id, ApplianceUpdate.state)
    )
    for rollout_id, state, count in session.execute(grouped):
        counts[rollout_id][state] = count
    return counts


def version_counts(session: Session, scope: Scope) -> list[Row[Any]]:
    """Return the most frequent versions, with the numbers of appliances and updatable ones."""
    scope.require(Permission.VIEW)
    columns: list[Any] = [
        Appliance.agent_version.label("version"),
        func.count().label("count"),
        func.sum(case((Appliance.can_update, 1), else_=0)).label("updatable"),
    ]
    in_scope = scope.select(select(*columns), Appliance).where(*_has_agent())
    by_version = in_scope.group_by(Appliance.agent_version)
    frequent = by_version.order_by(func.count().desc(), Appliance.agent_version)
    return list(session.execute(frequent.limit(MAX_VERSIONS)))


def pause_rollout(session: Session, scope: Scope, rollout_id: str) -> AgentRollout:
    """Start no more updates; those that have started go on."""
    rollout = _managed(session, scope, rollout_id)
    if rollout.state is RolloutState.RUNNING:
        rollout.state, rollout.reason = RolloutState.PAUSED, "Paused by a user."
    session.flush()
    return rollout


def resume_rollout(session: Session, scope: Scope, rollout_id: str) -> AgentRollout:
    """Go on with a paused rollout, and accept the failures so far."""
    rollout = _managed(session, scope, rollout_id)
    if rollout.state is RolloutState.PAUSED:
        counts = update_counts(session, [rollout])[rollout.id]
        rollout.accepted_failures = counts[ApplianceUpdateState.FAILED]
        rollout.state, rollout.reason = RolloutState.RUNNING, ""
    session.flush()
    return rollout


def cancel_rollout(
    session: Session, scope: Scope, rollout_id: str, *, now: datetime
) -> AgentRollout:
    """End a rollout: appliances that wait stay as they are, updates that have started go on."""
    rollout = _managed(session, scope, rollout_id)
    rollout.state, rollout.ended_at = RolloutState.CANCELED, now
    waiting = update(ApplianceUpdate).where(
        ApplianceUpdate.rollout_id == rollout.id,
        ApplianceUpdate.state == ApplianceUpdateState.WAITING,
    )
    session.execute(
        waiting.values(
            state=ApplianceUpdateState.SKIPPED, message="The rollout was canceled.", ended_at=now
        ),
        execution_options={"synchronize_session": False},
    )
    session.flush()
    return rollout


def _managed(session: Session, scope: Scope, rollout_id: str) -> AgentRollout:
    """Lock a rollout that has not ended; return it."""
    scope.require(Permission.MANAGE_APPLIANCES)
    scope.get(session, AgentRollout, rollout_id, kind="rollout")
    session.execute(select(AgentRollout.id).where(AgentRollout.id == rollout_id).with_for_update())
    rollout = session.get_one(AgentRollout, rollout_id, populate_existing=True)
    if rollout.state.is_final:
        raise ConflictError(f"This rollout has ended: it is {rollout.state}.", code="ended")
    return rollout


def _refuse_second(session: Session, tenant_id: str) -> None:
    session.execute(select(Tenant.id).where(Tenant.id == tenant_id).with_for_update())
    active = select(AgentRollout).where(
        AgentRollout.tenant_id == tenant_id, AgentRollout.state.in_(_ACTIVE)
    )
    if (rollout := session.scalars(active.limit(1)).first()) is not None:
        raise ConflictError(
            f"A rollout of {rollout.version} is {rollout.state}. Cancel it before you start "
            "another.",
            code="rollout_active",
        )


def _has_agent() -> tuple[ColumnElement[bool], ...]:
    """Return the conditions on appliances in service that are not hosts without an agent."""
    return in_service(), has_no_connector(), Appliance.state.not_in(WITHOUT_AGENT)


def _outdated(
    session: Session, tenant_id: str, sites: Sequence[str], *, version: str
) -> Sequence[Appliance]:
    statement = select(Appliance).where(
        Appliance.tenant_id == tenant_id, *_has_agent(), Appliance.agent_version != version
    )
    if sites:
        statement = statement.where(Appliance.site.in_(sites))
    return session.scalars(statement).all()


def _planned(rollout: AgentRollout, appliances: Sequence[Appliance]) -> list[ApplianceUpdate]:
    """Return the appliances with their stages; those without an update service are skipped."""
    by_site: dict[str, list[Appliance]] = defaultdict(list)
    skipped = []
    for appliance in appliances:
        if appliance.can_update:
            by_site[appliance.site].append(appliance)
        else:
            skipped.append((appliance, 0))
    staged = [
        (appliance, _stage(rank, len(members), rollout.stage_percents))
        for members in by_site.values()
        for rank, appliance in enumerate(sorted(members, key=lambda row: _mixed(rollout, row)))
    ]
    return [
        ApplianceUpdate(
            tenant_id=rollout.tenant_id,
            rollout_id=rollout.id,
            appliance_id=appliance.id,
            stage=stage,
            state=ApplianceUpdateState.WAITING
            if appliance.can_update
            else ApplianceUpdateState.SKIPPED,
            message="" if appliance.can_update else NO_UPDATE_SERVICE,
            ended_at=None if appliance.can_update else rollout.created_at,
            from_version=appliance.agent_version,
        )
        for appliance, stage in staged + skipped
    ]


def _stage(rank: int, count: int, percents: Sequence[int]) -> int:
    """Return the first stage whose share of a site includes the appliance of this rank."""
    return next(
        stage for stage, percent in enumerate(percents) if rank < math.ceil(count * percent / 100)
    )


def _mixed(rollout: AgentRollout, appliance: Appliance) -> bytes:
    """Return a sort key that makes other appliances the first in each rollout."""
    return sha256(f"{rollout.id}{appliance.id}".encode()).digest()


def _errors(request: RolloutRequest) -> dict[str, list[str]]:
    errors: dict[str, list[str]] = {}
    percents = list(request.stage_percents)
    is_rising = all(first < second for first, second in pairwise(percents))
    if not percents or percents[-1] != 100 or percents[0] < 1 or not is_rising:  # noqa: PLR2004
        shown = ", ".join(map(str, percents[:MAX_STAGES])) or "nothing"
        errors["stage_percents"] = [f"{shown} must rise and end with 100, such as 10, 50, 100."]
    elif len(percents) > MAX_STAGES:
        errors["stage_percents"] = [f"{len(percents)} stages are too many; use {MAX_STAGES}."]
    if not 0 <= request.soak_seconds <= MAX_SOAK_SECONDS:
        longest = format_duration(MAX_SOAK_SECONDS)
        errors["soak_seconds"] = [f"{request.soak_seconds} is not between 0 and {longest}."]
    if request.max_failures < 0:
        errors["max_failures"] = [f"{request.max_failures} is less than 0."]
    if len(request.sites) > MAX_SITES:
        errors["sites"] = [f"{len(request.sites)} sites are too many; use {MAX_SITES}, or none."]
    return errors
