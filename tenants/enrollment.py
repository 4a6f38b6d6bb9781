"""Enrollment: an appliance trades a one-time token for the agent's own identity."""

from datetime import datetime, timedelta
from typing import Any, Unpack

import msgspec
from sqlalchemy import ColumnElement, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.db import changed_one
from core.errors import ConflictError, InvalidInputError, UnauthenticatedError
from core.ids import hash_secret, new_secret
from core.paging import Columns, Page, Paging, list_page
from protocol.inventory import Inventory
from tenants.checks import raise_if_invalid
from tenants.fleet.agents import (
    AGENT_PREFIX,
    block_appliance,
    lock_appliance,
    reset_instances,
    rotate_agent_secret,
    tenant_refusal,
)
from tenants.fleet.appliance_changes import (
    MAX_NAME_LENGTH,
    appliance_name_errors,
    label_errors,
    length_errors,
)
from tenants.fleet.appliances import managed_appliance
from tenants.fleet.events import EventKind, add_event
from tenants.models import Appliance, ApplianceEvent, ApplianceState, EnrollmentToken, Tenant
from tenants.permissions import Permission
from tenants.pki.admission import revoke_identity
from tenants.quotas import reserve_appliance_quota
from tenants.scope import Scope

ENROLLMENT_TOKEN_SORTS: Columns = {
    "name": EnrollmentToken.name,
    "site": EnrollmentToken.site,
    "created_at": EnrollmentToken.created_at,
    "expires_at": EnrollmentToken.expires_at,
    "uses_left": EnrollmentToken.uses_left,
}
ENROLLMENT_PREFIX = "vde"
MAX_USES = 10_000
MAX_LIFETIME = timedelta(days=366)
_ENROLLMENTS = (EventKind.ENROLLED.value, EventKind.ENROLLED_AGAIN.value)


def create_enrollment_token(
    session: Session,
    scope: Scope,
    *,
    name: str = "",
    site: str = "",
    region: str = "",
    labels: dict[str, str] | None = None,
    uses: int = 1,
    lifetime: timedelta,
    now: datetime,
) -> tuple[EnrollmentToken, str]:
    """Create a token for `uses` appliances of the scope's tenant; return it with its secret.

    Site, region and labels override what the agent reports.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    tenant_id = scope.require_tenant()
    errors = length_errors(name=name, site=site, region=region)
    if not 1 <= uses <= MAX_USES:
        errors["uses"] = [f"uses is {uses}; choose 1 to {MAX_USES}."]
    if not timedelta(0) < lifetime <= MAX_LIFETIME:
        errors["lifetime"] = [
            f"The lifetime is {lifetime}; choose at most {MAX_LIFETIME.days} days."
        ]
    if errors:
        raise InvalidInputError("The enrollment token was not created.", errors=errors)
    token = EnrollmentToken(
        tenant_id=tenant_id, name=name, site=site, region=region, labels=labels or {}, uses=uses
    )
    return _add(session, scope, token, lifetime=lifetime, now=now)


def create_token_for_appliance(
    session: Session, scope: Scope, appliance_id: str, *, lifetime: timedelta, now: datetime
) -> tuple[EnrollmentToken, str]:
    """Create a token with which a known appliance enrolls again, with a new identity.

    Raises:
        ConflictError: the appliance was revoked, or is a node of a cluster.
    """
    appliance = managed_appliance(session, scope, appliance_id)
    if appliance.revoked_at is not None:
        raise ConflictError(
            f"The appliance {appliance.name!r} was revoked. Enroll its host as a new appliance."
        )
    token = EnrollmentToken(
        tenant_id=appliance.tenant_id,
        name=f"again: {appliance.name}"[:MAX_NAME_LENGTH],
        site=appliance.site,
        region=appliance.region,
        labels=appliance.labels,
        uses=1,
        appliance_id=appliance.id,
    )
    return _add(session, scope, token, lifetime=lifetime, now=now)


def list_enrollment_tokens(
    session: Session, scope: Scope, *, usable_at: datetime | None = None, **paging: Unpack[Paging]
) -> Page[EnrollmentToken]:
    """Return the tenant's tokens, newest first; `usable_at` selects usable ones."""
    scope.require(Permission.MANAGE_APPLIANCES)
    statement = scope.select(select(EnrollmentToken), EnrollmentToken)
    if usable_at is not None:
        statement = statement.where(
            EnrollmentToken.uses_left > 0,
            EnrollmentToken.expires_at > usable_at,
            EnrollmentToken.revoked_at.is_(None),
        )
    tokens = statement.order_by(EnrollmentToken.id.desc())
    return list_page(session, tokens, ENROLLMENT_TOKEN_SORTS, last=EnrollmentToken.id, **paging)


def get_enrollment_token(session: Session, scope: Scope, token_id: str) -> EnrollmentToken:
    """Return a token in the scope."""
    scope.require(Permission.MANAGE_APPLIANCES)
    return scope.get(session, EnrollmentToken, token_id, kind="enrollment token")


def enrollments_with(
    session: Session, scope: Scope, token_id: str, *, limit: int
) -> list[tuple[Appliance, datetime]]:
    """Return the appliances that enrolled with a token, each with the time, the newest first."""
    token = get_enrollment_token(session, scope, token_id)
    of_token = ApplianceEvent.details["token_id"].as_string() == token.id
    statement = (
        select(Appliance, ApplianceEvent.at)
        .join(ApplianceEvent, ApplianceEvent.appliance_id == Appliance.id)
        # The first two conditions have indexes.
        .where(Appliance.tenant_id == token.tenant_id, ApplianceEvent.at >= token.created_at)
        .where(ApplianceEvent.kind.in_(_ENROLLMENTS), of_token)
        .order_by(ApplianceEvent.at.desc(), Appliance.id)
        .limit(limit)
    )
    return [(appliance, at) for appliance, at in session.execute(statement)]


def revoke_enrollment_token(
    session: Session, scope: Scope, token_id: str, *, now: datetime
) -> EnrollmentToken:
    """Revoke a token; appliances that enrolled with it stay."""
    token = get_enrollment_token(session, scope, token_id)
    token.revoked_at = token.revoked_at or now
    session.flush()
    return token


def spend_token(session: Session, secret: str, *, now: datetime) -> EnrollmentToken:
    """Use a token once.

    Raises:
        UnauthenticatedError: it is unknown, expired, revoked or used up, or its tenant is not
        active.
    """
    # One guarded UPDATE: of two appliances that race for the last use, one gets it.
    spend = update(EnrollmentToken).where(*_is_usable(secret, now=now))
    if not changed_one(session, spend.values(uses_left=EnrollmentToken.uses_left - 1)):
        raise UnauthenticatedError(_UNUSABLE)
    token = session.scalars(
        select(EnrollmentToken).where(EnrollmentToken.secret_hash == hash_secret(secret)),
        execution_options={"populate_existing": True},
    ).one()
    refusal = tenant_refusal(session.get_one(Tenant, token.tenant_id))
    if refusal:
        raise UnauthenticatedError(refusal)
    return token


def check_token(session: Session, secret: str, *, now: datetime) -> None:
    """Check that a token can be used, without using it.

    Raises:
        UnauthenticatedError: it is unknown, expired, revoked or used up.
    """
    if session.scalar(select(EnrollmentToken.id).where(*_is_usable(secret, now=now))) is None:
        raise UnauthenticatedError(_UNUSABLE)


def _is_usable(secret: str, *, now: datetime) -> tuple[ColumnElement[bool], ...]:
    return (
        EnrollmentToken.secret_hash == hash_secret(secret),
        EnrollmentToken.uses_left > 0,
        EnrollmentToken.expires_at > now,
        EnrollmentToken.revoked_at.is_(None),
    )


_UNUSABLE = (
    "This enrollment token is wrong, expired, revoked or used up. Ask an admin of the tenant for a "
    "new one."
)


def _add(
    session: Session, scope: Scope, token: EnrollmentToken, *, lifetime: timedelta, now: datetime
) -> tuple[EnrollmentToken, str]:
    token.uses_left, token.created_by = token.uses, scope.user_id or None
    token.created_at, token.expires_at = now, now + lifetime
    secret = new_secret(ENROLLMENT_PREFIX)
    token.secret_hash = hash_secret(secret)
    session.add(token)
    session.flush()
    return token, secret


_NAME_TRIES = 1000


def enroll_appliance(
    session: Session,
    *,
    secret: str,
    name: str,
    inventory: Inventory,
    site: str = "",
    region: str = "",
    labels: dict[str, str] | None = None,
    now: datetime,
) -> tuple[Appliance, str]:
    """Use a token once; return the appliance and its agent's secret.

    If the name is taken, a number is appended, so that cloned hosts can enroll: `gpu-01-2`. With a
    token for a known appliance, that appliance gets a new identity and keeps its name and history.

    Raises:
        UnauthenticatedError: the token is not valid, or the tenant is not active.
        InvalidInputError: the name, site or region is invalid.
        ConflictError: a quota is reached; the token is not used.
    """
    errors = appliance_name_errors(name) | length_errors(site=site, region=region)
    raise_if_invalid(
        {**errors, "labels": label_errors(labels or {})}, "The appliance was not enrolled"
    )
    token = spend_token(session, secret, now=now)
    if token.appliance_id is not None:
        return _enroll_again(session, token, token.appliance_id, inventory=inventory, now=now)
    reserve_appliance_quota(session, token.tenant_id, gpus=len(inventory.gpus))
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
            "inventory": msgspec.to_builtins(inventory),
            "enrolled_at": now,
        },
    )
    details = {"token_id": token.id, "token_name": token.name}
    add_event(session, appliance, EventKind.ENROLLED, "Enrolled.", details=details, now=now)
    return appliance, agent_secret


def _enroll_again(
    session: Session,
    token: EnrollmentToken,
    appliance_id: str,
    *,
    inventory: Inventory,
    now: datetime,
) -> tuple[Appliance, str]:
    appliance = lock_appliance(session, appliance_id)
    if appliance.revoked_at is not None:
        raise UnauthenticatedError(
            f"The appliance {appliance.name!r} was revoked. Enroll its host as a new appliance."
        )
    revoke_identity(session, appliance, reason="Enrolled again.", now=now)
    secret = rotate_agent_secret(appliance)
    appliance.inventory = msgspec.to_builtins(inventory)
    appliance.fenced_at = None
    reset_instances(appliance)
    message = "Enrolled again, with a new identity."
    details = {"token_id": token.id, "token_name": token.name}
    add_event(session, appliance, EventKind.ENROLLED_AGAIN, message, details=details, now=now)
    block_appliance(session, appliance_id=appliance.id)
    return appliance, secret


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
        except IntegrityError:  # another appliance took the name concurrently
            continue
        return appliance
    raise ConflictError(
        f"There are {_NAME_TRIES} appliances named like {name!r}. Choose another name."
    )
