"""How an appliance joins a tenant: a one-time token is traded for the agent's own secret."""

import re
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.errors import ConflictError, InvalidInputError, UnauthenticatedError
from core.ids import hash_secret, new_secret
from tenants.models import Appliance, ApplianceState, EnrolmentToken, Tenant, TenantState
from tenants.permissions import Permission
from tenants.scope import Scope

ENROLMENT_PREFIX = "vde"
AGENT_PREFIX = "vda"
MAX_NAME_LENGTH = 100
MAX_USES = 10_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NAME_TRIES = 1000


def create_enrolment_token(
    session: Session,
    scope: Scope,
    *,
    site: str = "",
    region: str = "",
    labels: dict[str, str] | None = None,
    uses: int = 1,
    lifetime: timedelta,
    now: datetime,
) -> tuple[EnrolmentToken, str]:
    """Make a token for `uses` appliances of the scope's tenant; return it with its secret.

    Args:
        session: the database session.
        scope: an admin of the tenant.
        site: where the appliances stand; wins over what the agent says, as do the next two.
        region: the site's region.
        labels: free pairs for placement.
        uses: how many appliances may join with it.
        lifetime: how long it may be used.
        now: the present instant.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    tenant_id = scope.require_tenant()
    errors = {}
    if not 1 <= uses <= MAX_USES:
        errors["uses"] = [f"uses is {uses}; give 1 to {MAX_USES}."]
    if lifetime <= timedelta(0):
        errors["lifetime"] = [f"The lifetime is {lifetime}; give a positive one."]
    errors |= _text_faults(site=site, region=region)
    if errors:
        raise InvalidInputError("The enrolment token can't be made.", errors=errors)
    secret = new_secret(ENROLMENT_PREFIX)
    token = EnrolmentToken(
        tenant_id=tenant_id,
        secret_hash=hash_secret(secret),
        site=site,
        region=region,
        labels=labels or {},
        uses_left=uses,
        created_at=now,
        expires_at=now + lifetime,
    )
    session.add(token)
    session.flush()
    return token, secret


def enrol_appliance(
    session: Session,
    *,
    secret: str,
    name: str,
    inventory: dict[str, Any],
    site: str = "",
    region: str = "",
    labels: dict[str, str] | None = None,
    now: datetime,
) -> tuple[Appliance, str]:
    """Spend one use of a token; return the new appliance and its agent's secret.

    A taken name gets a number, so that cloned hosts can join: `gpu-01` and `gpu-01-2`.

    Raises:
        UnauthenticatedError: the token is unknown, expired or used up, or the tenant suspended.
        InvalidInputError: the name has other characters than host names have.
    """
    errors = _appliance_name_faults(name) | _text_faults(site=site, region=region)
    if errors:
        raise InvalidInputError("The appliance can't be enrolled.", errors=errors)
    token = _spend(session, secret, now=now)
    agent_secret = new_secret(AGENT_PREFIX)
    appliance = _insert_with_free_name(
        session,
        name,
        values={
            "tenant_id": token.tenant_id,
            "site": token.site or site,
            "region": token.region or region,
            "labels": {**(labels or {}), **token.labels},
            "state": ApplianceState.ENROLLED,
            "secret_hash": hash_secret(agent_secret),
            "inventory": inventory,
            "enrolled_at": now,
        },
    )
    return appliance, agent_secret


def authenticate_agent(session: Session, secret: str) -> Appliance:
    """Return the appliance whose agent holds this secret.

    Raises:
        UnauthenticatedError: it is unknown or revoked, or its tenant is suspended.
    """
    appliance = session.scalar(
        select(Appliance).where(Appliance.secret_hash == hash_secret(secret))
    )
    if appliance is None:
        raise UnauthenticatedError(
            "This agent token is unknown. Enrol the appliance again with a new enrolment token."
        )
    if appliance.revoked_at is not None:
        raise UnauthenticatedError(
            f"The appliance {appliance.name!r} was revoked. Enrol it again to bring it back."
        )
    _refuse_suspended(appliance.tenant)
    return appliance


def check_appliance_name(name: str) -> None:
    """Raise `InvalidInputError` unless the name may be an appliance's."""
    errors = _appliance_name_faults(name)
    if errors:
        raise InvalidInputError(errors["name"][0], errors=errors)


def _spend(session: Session, secret: str, *, now: datetime) -> EnrolmentToken:
    # One guarded UPDATE: of two appliances that race for the last use, one gets it.
    spent = session.execute(
        update(EnrolmentToken)
        .where(
            EnrolmentToken.secret_hash == hash_secret(secret),
            EnrolmentToken.uses_left > 0,
            EnrolmentToken.expires_at > now,
        )
        .values(uses_left=EnrolmentToken.uses_left - 1)
    )
    if not spent.rowcount:  # type: ignore[attr-defined] # an UPDATE gives a CursorResult
        raise UnauthenticatedError(
            "This enrolment token is wrong, expired or used up. Ask an admin of the tenant for a "
            "new one."
        )
    token = session.scalars(
        select(EnrolmentToken).where(EnrolmentToken.secret_hash == hash_secret(secret)),
        execution_options={"populate_existing": True},
    ).one()
    _refuse_suspended(session.get_one(Tenant, token.tenant_id))
    return token


def _refuse_suspended(tenant: Tenant) -> None:
    if tenant.state is TenantState.SUSPENDED:
        raise UnauthenticatedError(
            f"The tenant {tenant.name!r} is suspended. Ask the operator of the portal."
        )


def _insert_with_free_name(session: Session, name: str, *, values: dict[str, Any]) -> Appliance:
    for number in range(1, _NAME_TRIES):
        suffix = "" if number == 1 else f"-{number}"
        free = f"{name[: MAX_NAME_LENGTH - len(suffix)]}{suffix}"
        taken = select(Appliance.id).where(
            Appliance.tenant_id == values["tenant_id"], Appliance.name == free
        )
        if session.scalar(taken) is not None:
            continue
        appliance = Appliance(name=free, **values)
        try:
            with session.begin_nested():
                session.add(appliance)
        except IntegrityError:  # another appliance took the name meanwhile
            continue
        return appliance
    raise ConflictError(f"{_NAME_TRIES} appliances are called like {name!r}. Choose another name.")


def _appliance_name_faults(name: str) -> dict[str, list[str]]:
    if len(name) <= MAX_NAME_LENGTH and _NAME.fullmatch(name):
        return {}
    fault = (
        f"The name {name!r} is not 1 to {MAX_NAME_LENGTH} letters, digits, dots, hyphens and "
        "underscores, the first a letter or digit. Give the host's name."
    )
    return {"name": [fault]}


def _text_faults(**texts: str) -> dict[str, list[str]]:
    return {
        field: [f"{field} has {len(text)} characters; use at most {MAX_NAME_LENGTH}."]
        for field, text in texts.items()
        if len(text) > MAX_NAME_LENGTH
    }
