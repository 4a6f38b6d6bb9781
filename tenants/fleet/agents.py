"""Agents' identities: authentication, refusal and fencing.

The agent API caches which agents are admitted. Between two reads it checks only whether the
*registry revision* changed. Revoking, fencing, retiring and suspending call `block_appliance` or
`block_tenant` in the same transaction, which also ends the agents' long polls.

*Fencing* refuses an identity that two agents use, as when a disk is cloned, until an admin lifts
the fence. There are two signs: a certificate is used long after it was replaced, or the *instances*
(runs of an agent) that send heartbeats alternate, which a restart never causes.
"""

from datetime import datetime

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, joinedload

from core.changes import ANY, Topic, note_change
from core.db import changed_one
from core.errors import UnauthenticatedError
from core.ids import hash_secret, new_secret
from tenants.fleet.appliances import renew_orders_at
from tenants.fleet.events import EventKind, add_event
from tenants.models import AgentRegistryRevision, Appliance, Tenant, TenantState
from tenants.permissions import Permission
from tenants.scope import Scope

AGENT_PREFIX = "vda"
REVISION_ID = "agents"
MAX_PAST_INSTANCES = 20
TWO_INSTANCES = "two agents with the identity of this appliance sent heartbeats in turn."
OLD_CERTIFICATE = (
    "a replaced certificate was used again, so two agents have the identity of this appliance."
)


def authenticate_agent(session: Session, secret: str) -> Appliance:
    """Return the appliance whose agent has this secret.

    Raises:
        UnauthenticatedError: the secret is unknown, or the appliance or its tenant is blocked.
    """
    appliance = session.scalar(
        select(Appliance)
        .where(Appliance.secret_hash == hash_secret(secret))
        .options(joinedload(Appliance.tenant))
    )
    if appliance is None:
        raise UnauthenticatedError(
            "Unknown agent token. Enroll the appliance again with a new enrollment token."
        )
    refusal = appliance_refusal(appliance)
    if refusal:
        raise UnauthenticatedError(refusal)
    return appliance


def appliance_refusal(appliance: Appliance) -> str:
    """Return why an appliance's agent is refused; empty if it is admitted."""
    if appliance.revoked_at is not None:
        return f"The appliance {appliance.name!r} was revoked. Enroll it again to bring it back."
    if appliance.retired_at is not None:
        return (
            f"The appliance {appliance.name!r} was retired. An admin of the tenant can reinstate "
            "it."
        )
    if appliance.fenced_at is not None:
        return (
            f"The appliance {appliance.name!r} is fenced: two agents used its identity at once, as "
            "when a disk is cloned. Stop one of them, delete its data folder and enroll it again. "
            "Then lift the fence on the appliance's page."
        )
    return tenant_refusal(appliance.tenant)


def tenant_refusal(tenant: Tenant) -> str:
    """Return why all agents of a tenant are refused; empty if they are not."""
    if tenant.state is TenantState.ACTIVE:
        return ""
    return f"The tenant {tenant.name!r} is {tenant.state.value}. Contact the portal's operator."


def rotate_agent_secret(appliance: Appliance) -> str:
    """Replace the secret of an appliance's agent; return the new one."""
    secret = new_secret(AGENT_PREFIX)
    appliance.secret_hash = hash_secret(secret)
    return secret


def lock_appliance(session: Session, appliance_id: str) -> Appliance:
    """Lock an appliance's row until the transaction ends; return it, freshly read."""
    # A joined load would lock the tenant's row, which all its appliances share.
    session.execute(select(Appliance.id).where(Appliance.id == appliance_id).with_for_update())
    return session.get_one(Appliance, appliance_id, populate_existing=True)


def block_appliance(session: Session, *, appliance_id: str) -> None:
    """Make the agent API check an appliance's admission again at once.

    Its neighbors fetch new orders, so that they neither ask nor answer one that is refused.
    """
    _invalidate(session, Appliance.id == appliance_id, told=appliance_id)
    appliance = session.get_one(Appliance, appliance_id)
    renew_orders_at(session, appliance.tenant_id, appliance.site)


def block_tenant(session: Session, *, tenant_id: str) -> None:
    """Make the agent API check the admission of a tenant's agents again at once."""
    _invalidate(session, Appliance.tenant_id == tenant_id, told=ANY)


def registry_revision(session: Session) -> int:
    """Return the registry revision; 0 if nothing was ever blocked."""
    number = select(AgentRegistryRevision.number).where(AgentRegistryRevision.id == REVISION_ID)
    return session.scalar(number) or 0


def fence_appliance(session: Session, appliance: Appliance, *, reason: str, now: datetime) -> None:
    """Refuse every agent that has this appliance's identity."""
    if appliance.fenced_at is not None:
        return
    appliance.fenced_at = now
    add_event(session, appliance, EventKind.FENCED, f"Fenced: {reason}", now=now)
    block_appliance(session, appliance_id=appliance.id)


def lift_fence(session: Session, scope: Scope, appliance_id: str, *, now: datetime) -> Appliance:
    """Admit a fenced appliance's agent again."""
    scope.require(Permission.MANAGE_APPLIANCES)
    appliance = scope.get(session, Appliance, appliance_id, kind="appliance")
    if appliance.fenced_at is not None:
        appliance.fenced_at = None
        reset_instances(appliance)
        add_event(session, appliance, EventKind.FENCE_LIFTED, "The fence was lifted.", now=now)
        session.flush()
        renew_orders_at(session, appliance.tenant_id, appliance.site)
    return appliance


def reset_instances(appliance: Appliance) -> None:
    """Forget the agent's runs: the next one counts as the first."""
    appliance.instance_id = None
    appliance.past_instances = None


def claim_instance(session: Session, appliance_id: str, instance_id: str, *, now: datetime) -> bool:
    """Make a run of the agent the current one; fence and return False if two runs alternate."""
    appliance = lock_appliance(session, appliance_id)
    if appliance.fenced_at is not None:
        return False
    current, past = appliance.instance_id, appliance.past_instances or []
    if current == instance_id:
        return True
    if instance_id in past:
        fence_appliance(session, appliance, reason=TWO_INSTANCES, now=now)
        return False
    if current is not None:
        appliance.past_instances = [*past, current][-MAX_PAST_INSTANCES:]
    appliance.instance_id = instance_id
    session.flush()
    return True


def refresh_registry(session: Session) -> None:
    """Make the agent API load again who may send."""
    session.flush()
    note_change(session, Topic.REGISTRY, ANY)
    if _increment_revision(session):
        return
    try:
        with session.begin_nested():
            session.add(AgentRegistryRevision(id=REVISION_ID, number=1))
    except IntegrityError:  # a concurrent transaction inserted it
        _increment_revision(session)


def _invalidate(session: Session, appliances: ColumnElement[bool], *, told: str) -> None:
    session.flush()
    note_change(session, Topic.DESIRED, told)
    session.execute(
        update(Appliance)
        .where(appliances)
        .values(desired_generation=Appliance.desired_generation + 1),
        execution_options={"synchronize_session": False},
    )
    refresh_registry(session)


def _increment_revision(session: Session) -> bool:
    return changed_one(
        session,
        update(AgentRegistryRevision)
        .where(AgentRegistryRevision.id == REVISION_ID)
        .values(number=AgentRegistryRevision.number + 1),
        synchronize_session=False,
    )
