"""Changes of appliances' names, sites, regions and labels; each is an event."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.changes import Topic, note_change
from core.errors import ConflictError
from tenants.checks import raise_if_invalid
from tenants.fleet.agents import lock_appliance
from tenants.fleet.appliances import (
    add_change_event,
    managed_appliance,
    managed_appliances,
    renew_orders_at,
)
from tenants.fleet.events import EventKind
from tenants.fleet.nodes import cluster_of, sync_nodes
from tenants.models import Appliance, ApplianceState
from tenants.scope import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplianceChanges:
    """New values of an appliance; None does not change a value."""

    name: str | None = None
    site: str | None = None
    region: str | None = None
    labels: Mapping[str, str] | None = None


def change_appliance(
    session: Session, scope: Scope, appliance_id: str, changes: ApplianceChanges, *, now: datetime
) -> Appliance:
    """Change an appliance's name, site or region, or replace its labels.

    Raises:
        InvalidInputError: names every invalid field.
        ConflictError: another appliance of the tenant, also a retired one, has the name.
    """
    appliance = managed_appliance(session, scope, appliance_id)
    raise_if_invalid(_errors(changes), "The appliance can't be changed")
    _refuse_taken(session, appliance, changes.name)
    site = appliance.site
    changed = list(_apply(session, appliance, changes))
    if changed:
        add_change_event(session, appliance, EventKind.CHANGED, " ".join(changed), now=now)
    try:
        session.flush()
    except IntegrityError as error:  # another appliance took the name concurrently
        raise _name_taken(changes.name or "") from error
    if changed and appliance.cluster_kind:
        _change_nodes(session, lock_appliance(session, appliance.id), now=now)
    for changed_site in {site, appliance.site} if site != appliance.site else ():
        renew_orders_at(session, appliance.tenant_id, changed_site)
    return appliance


def _change_nodes(session: Session, connector: Appliance, *, now: datetime) -> None:
    """Let the nodes of a connector have its name, site and region: else at its next heartbeat."""
    if connector.state is ApplianceState.ONLINE and connector.retired_at is None:
        report = cluster_of(connector.inventory)
        sync_nodes(session, connector, report, before=report, now=now)


def label_appliances(
    session: Session,
    scope: Scope,
    appliance_ids: Sequence[str],
    *,
    added: Mapping[str, str],
    removed: Iterable[str] = (),
    now: datetime,
) -> list[Appliance]:
    """Add or replace labels of several appliances, and remove others.

    Raises:
        InvalidInputError: a label is invalid.
    """
    chosen = managed_appliances(session, scope, appliance_ids)
    gone = set(removed)
    for appliance in chosen:
        others = {key: value for key, value in appliance.labels.items() if key not in gone}
        labels = {**others, **added}
        raise_if_invalid({"labels": label_errors(labels)}, f"{appliance.name} can't be labeled")
        changed = list(_apply(session, appliance, ApplianceChanges(labels=labels)))
        if changed:
            add_change_event(session, appliance, EventKind.CHANGED, " ".join(changed), now=now)
    session.flush()
    return chosen


def _apply(session: Session, appliance: Appliance, changes: ApplianceChanges) -> Iterable[str]:
    """Apply the changes; yield a sentence for each."""
    for field in ("name", "site", "region"):
        old, new = getattr(appliance, field), getattr(changes, field)
        if new is not None and new != old:
            setattr(appliance, field, new)
            yield f"{field.capitalize()}: {new or 'none'}; was {old or 'none'}."
    if changes.labels is not None and dict(changes.labels) != appliance.labels:
        old, new = appliance.labels, dict(changes.labels)
        appliance.labels = new
        # How its GPUs are shared follows from them.
        appliance.desired_generation = Appliance.desired_generation + 1
        note_change(session, Topic.DESIRED, appliance.id)
        yield f"Labels: {_labels_text(new)}; were {_labels_text(old)}."


def _labels_text(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items()) or "none"


def _errors(changes: ApplianceChanges) -> dict[str, list[str]]:
    errors = length_errors(site=changes.site or "", region=changes.region or "")
    if changes.name is not None:
        errors |= appliance_name_errors(changes.name)
    return errors | {"labels": label_errors(changes.labels or {})}


def _refuse_taken(session: Session, appliance: Appliance, name: str | None) -> None:
    others = select(Appliance.id).where(
        Appliance.tenant_id == appliance.tenant_id,
        Appliance.name == name,
        Appliance.id != appliance.id,
    )
    if name is not None and session.scalar(others) is not None:
        raise _name_taken(name)


def _name_taken(name: str) -> ConflictError:
    taken = (
        f"Another appliance, perhaps a retired or revoked one, is named {name!r}. Choose another "
        "name."
    )
    return ConflictError(taken, code="name_taken", errors={"name": [taken]})


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def appliance_name_errors(name: str) -> dict[str, list[str]]:
    """Return the validation errors of an appliance's name, by field."""
    if len(name) <= MAX_NAME_LENGTH and _NAME.fullmatch(name):
        return {}
    error = (
        f"The name {name!r} is invalid. Use 1 to {MAX_NAME_LENGTH} letters, digits, dots, hyphens "
        "and underscores, starting with a letter or digit."
    )
    return {"name": [error]}


MAX_NAME_LENGTH = 100


def length_errors(**texts: str) -> dict[str, list[str]]:
    """Return the errors of too long texts, by field."""
    return {
        field: [f"{field} has {len(text)} characters; use at most {MAX_NAME_LENGTH}."]
        for field, text in texts.items()
        if len(text) > MAX_NAME_LENGTH
    }


MAX_LABELS = 50
MAX_VALUE_LENGTH = 200
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")


def label_errors(labels: Mapping[str, str]) -> list[str]:
    """Return what is wrong with an appliance's labels."""
    errors = [
        f"The label {key[:70]!r} is invalid. Use 1 to 63 letters, digits, dots, hyphens, slashes "
        "and underscores, starting with a letter or digit."
        for key in labels
        if not _KEY.fullmatch(key)
    ]
    errors += [
        f"The label {key!r} has a value of {len(value)} characters; use at most "
        f"{MAX_VALUE_LENGTH}, none of them a line break."
        for key, value in labels.items()
        if len(value) > MAX_VALUE_LENGTH or not value.isprintable()
    ]
    if len(labels) > MAX_LABELS:
        errors.append(f"{len(labels)} labels are too many; use at most {MAX_LABELS}.")
    return errors
