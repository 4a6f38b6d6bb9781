"""Hosts without an agent: other programs send their samples with a write token.

Such a host is *reporting* while its samples arrive, and *silent* when none came for a while. If an
agent enrolls as this appliance, its heartbeats decide from then on.

Readings of other programs that count as ours (`timeseries.metric_map`) come from one *sender* for
each host, a program with a token: two of them would mix in one series. Another one takes over when
the first doesn't send for three minutes.
"""

from collections.abc import Collection
from datetime import datetime, timedelta

import msgspec
from sqlalchemy import Select, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.db import changed_one
from core.errors import ConflictError, VedetteError
from core.ids import hash_secret, new_secret
from core.quantities import format_duration
from protocol.inventory import Inventory
from tenants.checks import raise_if_invalid
from tenants.fleet.agents import AGENT_PREFIX, appliance_refusal
from tenants.fleet.appliance_changes import appliance_name_errors
from tenants.fleet.events import EventKind, add_event
from tenants.fleet.states import WITHOUT_AGENT, check_transition, in_service
from tenants.models import Appliance, ApplianceState, Tenant, WriteToken
from tenants.quotas import reserve_appliance_quota

# Longer than usual intervals of sending, and shorter than until the host is silent.
TAKEN_OVER_AFTER = timedelta(minutes=3)


class RefusedHostError(VedetteError):
    """No samples of this host are stored: it was retired, or its name is invalid."""

    status = 403
    default_code = "host_refused"


def claim_host(
    session: Session, token_id: str, *, name: str, program: str, now: datetime
) -> tuple[Appliance, bool]:
    """Return the appliance of a host, and whether this sender's readings count as ours.

    A new host becomes an appliance.

    Args:
        token_id: the token that it was sent with.
        name: of the host.
        program: what sends, such as `telegraf`.

    Raises:
        RefusedHostError: the appliance is out of service, or can't be added.
    """
    token = session.get_one(WriteToken, token_id)
    appliance = session.scalar(_named(token, name))
    if appliance is None:
        appliance = _add(session, token, name=name, now=now)
    refusal = appliance_refusal(appliance)
    if refusal:
        raise RefusedHostError(refusal)
    if appliance.state not in WITHOUT_AGENT:
        return appliance, False
    sender = f"{program}:{token.id}"
    if appliance.sender == sender:
        return appliance, True
    return appliance, _is_free(appliance, now=now) and _take(session, appliance, sender)


def record_samples(
    session: Session, appliance_ids: Collection[str], token_ids: Collection[str], *, now: datetime
) -> None:
    """Note that samples of these hosts have arrived from their senders, with these tokens."""
    session.execute(
        update(WriteToken).where(WriteToken.id.in_(token_ids)).values(last_used_at=now),
        execution_options={"synchronize_session": False},
    )
    own = Appliance.id.in_(appliance_ids), Appliance.state.in_(WITHOUT_AGENT)
    silent = select(Appliance).where(*own, Appliance.state == ApplianceState.SILENT)
    for appliance in session.scalars(silent.with_for_update()):
        seen_at = appliance.last_seen_at or appliance.enrolled_at
        silence = format_duration((now - seen_at).total_seconds())
        appliance.state = check_transition(appliance.state, ApplianceState.REPORTING)
        message = f"Reporting again after {silence} without samples."
        add_event(session, appliance, EventKind.STATE, message, now=now)
    session.flush()
    session.execute(
        update(Appliance).where(*own).values(last_seen_at=now),
        execution_options={"synchronize_session": False},
    )


def sweep_reporting_hosts(
    session: Session,
    *,
    silent_after: timedelta,
    now: datetime,
    listening_since: datetime | None = None,
) -> list[Appliance]:
    """Mark hosts without recent samples as silent; return them.

    The portal's own downtime does not count: it started at `listening_since`.
    """
    if listening_since is not None and now - listening_since < silent_after:
        return []
    overdue = select(Appliance).where(
        in_service(),
        Appliance.state == ApplianceState.REPORTING,
        Appliance.last_seen_at < now - silent_after,
    )
    silent = []
    for appliance in session.scalars(overdue):
        guarded = update(Appliance).where(
            Appliance.id == appliance.id,
            Appliance.state == ApplianceState.REPORTING,
            Appliance.last_seen_at == appliance.last_seen_at,
        )
        check_transition(appliance.state, ApplianceState.SILENT)
        if changed_one(session, guarded.values(state=ApplianceState.SILENT)):
            seen_at = appliance.last_seen_at or appliance.enrolled_at
            silence = format_duration((now - seen_at).total_seconds())
            message = f"Silent: no samples for {silence}."
            add_event(session, appliance, EventKind.STATE, message, now=now)
            silent.append(appliance)
    return silent


def _named(token: WriteToken, name: str) -> Select[Appliance]:
    return select(Appliance).where(Appliance.tenant_id == token.tenant_id, Appliance.name == name)


def _is_free(appliance: Appliance, *, now: datetime) -> bool:
    seen_at = appliance.last_seen_at
    return not appliance.sender or seen_at is None or now - seen_at > TAKEN_OVER_AFTER


def _take(session: Session, appliance: Appliance, sender: str) -> bool:
    """Make a sender the one of a host; return False if another one was faster."""
    is_unchanged = Appliance.id == appliance.id, Appliance.sender == appliance.sender
    taken = changed_one(session, update(Appliance).where(*is_unchanged).values(sender=sender))
    session.refresh(appliance, ["sender"])
    return taken


def _add(session: Session, token: WriteToken, *, name: str, now: datetime) -> Appliance:
    try:
        raise_if_invalid(appliance_name_errors(name), "The host was not added")
        tenant = session.get_one(Tenant, token.tenant_id)
        reserve_appliance_quota(session, tenant.id, gpus=0)
    except ConflictError as error:
        raise RefusedHostError(error.message) from error
    except VedetteError as error:
        reasons = "; ".join(reason for field in error.errors.values() for reason in field)
        raise RefusedHostError(reasons or error.message) from error
    appliance = Appliance(
        tenant_id=token.tenant_id,
        name=name,
        state=ApplianceState.REPORTING,
        # Nobody has the secret: an agent gets one of its own when it enrolls.
        secret_hash=hash_secret(new_secret(AGENT_PREFIX)),
        inventory=msgspec.to_builtins(Inventory(hostname=name, cpu_count=0)),
        enrolled_at=now,
        last_seen_at=now,
    )
    try:
        with session.begin_nested():
            session.add(appliance)
    except IntegrityError:  # another process has added it
        return session.scalars(_named(token, name)).one()
    details = {"token_id": token.id, "token_name": token.name}
    message = f"First samples with the write token {token.name or 'without a name'}."
    add_event(session, appliance, EventKind.REPORTING, message, details=details, now=now)
    return appliance
