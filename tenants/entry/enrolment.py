"""How an appliance joins a tenant: a one-time token is traded for the agent's own identity.

The tokens are made in `tenants.entry.enrolment_tokens`, and what an agent proves later with who it
is, is in `tenants.entry.agents`; both are offered here too.
"""

import re
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.errors import ConflictError, InvalidInputError, UnauthenticatedError
from core.ids import hash_secret, new_secret
from tenants.customers.quotas import hold_place_for_appliance
from tenants.entry.agents import AGENT_PREFIX, authenticate_agent, give_secret, lock_appliance
from tenants.entry.enrolment_tokens import (
    ENROLMENT_PREFIX,
    MAX_NAME_LENGTH,
    MAX_USES,
    create_enrolment_token,
    spend_token,
    text_faults,
)
from tenants.entry.fencing import forget_instances
from tenants.entry.revocation import revoke_identity
from tenants.entry.roll import shut_out
from tenants.fleet.events import add_event
from tenants.models import Appliance, ApplianceState, gpus_told

__all__ = [
    "AGENT_PREFIX",
    "ENROLMENT_PREFIX",
    "MAX_NAME_LENGTH",
    "MAX_USES",
    "authenticate_agent",
    "check_appliance_name",
    "create_enrolment_token",
    "enrol_appliance",
]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NAME_TRIES = 1000


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
    """Spend one use of a token; return the appliance and its agent's secret.

    A taken name gets a number, so that cloned hosts can join: `gpu-01` and `gpu-01-2`. With a token
    that was made for one appliance, that one gets a new identity and keeps its name and history.

    Raises:
        UnauthenticatedError: the token is of no use, or the tenant shut out.
        InvalidInputError: the name has other characters than host names have.
        ConflictError: the tenant's quota of appliances or GPUs is reached; the token is not spent.
    """
    errors = _appliance_name_faults(name) | text_faults(site=site, region=region)
    if errors:
        raise InvalidInputError("The appliance can't be enrolled.", errors=errors)
    token = spend_token(session, secret, now=now)
    if token.appliance_id is not None:
        return _enrol_again(session, token.appliance_id, inventory=inventory, now=now)
    gpus = gpus_told(inventory)["gpu_count"]
    hold_place_for_appliance(session, token.tenant_id, gpus=gpus)
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
    details = {"token_id": token.id, "token_name": token.name}
    add_event(session, appliance, "enrolled", "The appliance joined.", details=details, now=now)
    return appliance, agent_secret


def check_appliance_name(name: str) -> None:
    """Raise `InvalidInputError` unless the name may be an appliance's."""
    errors = _appliance_name_faults(name)
    if errors:
        raise InvalidInputError(errors["name"][0], errors=errors)


def _enrol_again(
    session: Session, appliance_id: str, *, inventory: dict[str, Any], now: datetime
) -> tuple[Appliance, str]:
    appliance = lock_appliance(session, appliance_id)
    if appliance.revoked_at is not None:
        raise UnauthenticatedError(
            f"The appliance {appliance.name!r} was revoked for good. Enrol its host as a new one."
        )
    revoke_identity(session, appliance, reason="Enrolled again.", now=now)
    secret = give_secret(appliance)
    appliance.inventory = inventory
    appliance.fenced_at = None
    forget_instances(appliance)
    message = "The appliance joined again, under a new identity."
    add_event(session, appliance, "enrolled_again", message, now=now)
    shut_out(session, appliance_id=appliance.id)
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
