"""Agents and what they prove with who they are: who may come in, and the sentence why not."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import UnauthenticatedError
from core.ids import hash_secret, new_secret
from tenants.models import Appliance, Tenant, TenantState

AGENT_PREFIX = "vda"


def authenticate_agent(session: Session, secret: str) -> Appliance:
    """Return the appliance whose agent holds this secret.

    Raises:
        UnauthenticatedError: it is unknown, or its appliance or tenant is shut out.
    """
    appliance = session.scalar(
        select(Appliance).where(Appliance.secret_hash == hash_secret(secret))
    )
    if appliance is None:
        raise UnauthenticatedError(
            "This agent token is unknown. Enrol the appliance again with a new enrolment token."
        )
    refusal = refusal_of(appliance)
    if refusal:
        raise UnauthenticatedError(refusal)
    return appliance


def refusal_of(appliance: Appliance) -> str:
    """Return why an appliance's agent may not come in, whatever it proves; empty where it may."""
    if appliance.revoked_at is not None:
        return f"The appliance {appliance.name!r} was revoked. Enrol it again to bring it back."
    if appliance.retired_at is not None:
        return (
            f"The appliance {appliance.name!r} was retired. An admin of the tenant can bring it "
            "back into service."
        )
    if appliance.fenced_at is not None:
        return (
            f"The appliance {appliance.name!r} is fenced: two agents used its identity at once, as "
            "when a disk is cloned. Stop one of them, remove its data folder and enrol it anew; "
            "then lift the fence on the appliance's page."
        )
    return tenant_refusal(appliance.tenant)


def tenant_refusal(tenant: Tenant) -> str:
    """Return why no agent of a tenant may come in; empty where they may."""
    if tenant.state is TenantState.ACTIVE:
        return ""
    return f"The tenant {tenant.name!r} is {tenant.state.value}. Ask the operator of the portal."


def give_secret(appliance: Appliance) -> str:
    """Give an appliance's agent a new secret, of which the hash alone is kept; return it."""
    secret = new_secret(AGENT_PREFIX)
    appliance.secret_hash = hash_secret(secret)
    return secret


def lock_appliance(session: Session, appliance_id: str) -> Appliance:
    """Return an appliance as it is now, and have others who would change its identity wait.

    Its row alone is locked, not the tenant's, which all its appliances share.
    """
    session.execute(select(Appliance.id).where(Appliance.id == appliance_id).with_for_update())
    return session.get_one(Appliance, appliance_id, populate_existing=True)
