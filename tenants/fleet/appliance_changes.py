"""What people call appliances, where they stand and how they are labelled.

Each change is an event of its appliance; that the audit log tells of it is the model's business.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.errors import ConflictError, InvalidInputError
from tenants.checks import refuse
from tenants.entry.enrolment import check_appliance_name
from tenants.entry.enrolment_tokens import text_faults
from tenants.fleet.events import EventKind
from tenants.fleet.labels import label_faults
from tenants.fleet.managed import managed_appliance, managed_appliances, tell_change
from tenants.models import Appliance
from tenants.scope import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplianceChanges:
    """What an appliance shall have; None leaves it as it is."""

    name: str | None = None
    site: str | None = None
    region: str | None = None
    labels: Mapping[str, str] | None = None


def change_appliance(
    session: Session, scope: Scope, appliance_id: str, changes: ApplianceChanges, *, now: datetime
) -> Appliance:
    """Give an appliance another name, site or region, or other labels in place of its own.

    Raises:
        InvalidInputError: names every faulty field.
        ConflictError: another appliance of the tenant, retired ones included, has the name.
    """
    appliance = managed_appliance(session, scope, appliance_id)
    refuse(_faults(changes), "The appliance can't be changed")
    _refuse_taken(session, appliance, changes.name)
    told = list(_apply(appliance, changes))
    if told:
        tell_change(session, appliance, EventKind.CHANGED, " ".join(told), now=now)
    try:
        session.flush()
    except IntegrityError as error:  # another one got the name in this very moment
        raise _name_taken(changes.name or "") from error
    return appliance


def label_appliances(
    session: Session,
    scope: Scope,
    appliance_ids: Sequence[str],
    *,
    added: Mapping[str, str],
    removed: Iterable[str] = (),
    now: datetime,
) -> list[Appliance]:
    """Add labels to several appliances, in place of those of the same key, and take others off.

    Raises:
        InvalidInputError: says what is wrong with the labels.
    """
    chosen = managed_appliances(session, scope, appliance_ids)
    gone = set(removed)
    for appliance in chosen:
        kept = {key: value for key, value in appliance.labels.items() if key not in gone}
        labels = {**kept, **added}
        refuse({"labels": label_faults(labels)}, f"{appliance.name} can't be labelled")
        told = list(_apply(appliance, ApplianceChanges(labels=labels)))
        if told:
            tell_change(session, appliance, EventKind.CHANGED, " ".join(told), now=now)
    session.flush()
    return chosen


def _apply(appliance: Appliance, changes: ApplianceChanges) -> Iterable[str]:
    """Change what is another; yield a sentence for each."""
    for field in ("name", "site", "region"):
        old, new = getattr(appliance, field), getattr(changes, field)
        if new is not None and new != old:
            setattr(appliance, field, new)
            yield f"{field.capitalize()}: {new or 'none'}; was {old or 'none'}."
    if changes.labels is not None and dict(changes.labels) != appliance.labels:
        old, new = appliance.labels, dict(changes.labels)
        appliance.labels = new
        yield f"Labels: {_labels_text(new)}; were {_labels_text(old)}."


def _labels_text(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items()) or "none"


def _faults(changes: ApplianceChanges) -> dict[str, list[str]]:
    faults = text_faults(site=changes.site or "", region=changes.region or "")
    if changes.name is not None:
        try:
            check_appliance_name(changes.name)
        except InvalidInputError as error:
            faults |= error.errors
    return faults | {"labels": label_faults(changes.labels or {})}


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
        f"Another appliance is called {name!r}; those that are retired or revoked keep their "
        "names. Choose another name."
    )
    return ConflictError(taken, code="name_taken", errors={"name": [taken]})
