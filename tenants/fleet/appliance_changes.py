"""What people do to appliances: rename, label, move, drain, retire, revoke.

Each change is an event of its appliance; that the audit log tells of it is the model's business.
*Retired* is out of service with its history kept, and can be taken back; *revoked* is for good.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.errors import ConflictError, InvalidInputError, NotFoundError
from tenants.checks import refuse
from tenants.entry.agents import lock_appliance
from tenants.entry.enrolment import check_appliance_name
from tenants.entry.enrolment_tokens import text_faults
from tenants.entry.roll import shut_out
from tenants.fleet.events import EventKind, add_event, by_whom
from tenants.fleet.labels import label_faults
from tenants.models import Appliance, ApplianceState
from tenants.permissions import Permission
from tenants.scope import Scope

_MOST_JOBS_NAMED = 5


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
    appliance = _managed(session, scope, appliance_id)
    refuse(_faults(changes), "The appliance can't be changed")
    _refuse_taken(session, appliance, changes.name)
    told = list(_apply(appliance, changes))
    if told:
        _tell(session, appliance, EventKind.CHANGED, " ".join(told), now=now)
    try:
        session.flush()
    except IntegrityError as error:  # another one got the name in this very moment
        raise _name_taken(changes.name or "") from error
    return appliance


def drain_appliance(
    session: Session, scope: Scope, appliance_id: str, *, now: datetime
) -> Appliance:
    """Place no more jobs on an appliance; doing it twice keeps the first instant."""
    return drain_appliances(session, scope, [appliance_id], now=now)[0]


def undrain_appliance(
    session: Session, scope: Scope, appliance_id: str, *, now: datetime
) -> Appliance:
    """Let jobs be placed on an appliance again."""
    return undrain_appliances(session, scope, [appliance_id], now=now)[0]


def drain_appliances(
    session: Session, scope: Scope, appliance_ids: Sequence[str], *, now: datetime
) -> list[Appliance]:
    """Place no more jobs on several appliances; one that is drained already stays as it is."""
    chosen = _all_managed(session, scope, appliance_ids)
    for appliance in chosen:
        if appliance.drained_at is None:
            appliance.drained_at = now
            message = "Drained: it takes no new jobs."
            _tell(session, appliance, EventKind.DRAINED, message, now=now)
    session.flush()
    return chosen


def undrain_appliances(
    session: Session, scope: Scope, appliance_ids: Sequence[str], *, now: datetime
) -> list[Appliance]:
    """Let jobs be placed on several appliances again."""
    chosen = _all_managed(session, scope, appliance_ids)
    for appliance in chosen:
        if appliance.drained_at is not None:
            appliance.drained_at = None
            _tell(session, appliance, EventKind.UNDRAINED, "It takes jobs again.", now=now)
    session.flush()
    return chosen


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
    chosen = _all_managed(session, scope, appliance_ids)
    gone = set(removed)
    for appliance in chosen:
        kept = {key: value for key, value in appliance.labels.items() if key not in gone}
        labels = {**kept, **added}
        refuse({"labels": label_faults(labels)}, f"{appliance.name} can't be labelled")
        told = list(_apply(appliance, ApplianceChanges(labels=labels)))
        if told:
            _tell(session, appliance, EventKind.CHANGED, " ".join(told), now=now)
    session.flush()
    return chosen


def retire_appliance(
    session: Session,
    scope: Scope,
    appliance_id: str,
    *,
    held_by: Sequence[str],
    now: datetime,
) -> Appliance:
    """Take an appliance out of service: its agent is refused, its history and its name are kept.

    Args:
        session: the database session.
        scope: who asks.
        appliance_id: which one.
        held_by: the names of the jobs that run there; see `jobqueue.retirement`.
        now: the present instant.

    Raises:
        ConflictError: jobs run there, or it was revoked.
    """
    _managed(session, scope, appliance_id)
    appliance = lock_appliance(session, appliance_id)
    _require_not_revoked(appliance)
    if appliance.retired_at is not None:
        return appliance
    if held_by:
        raise ConflictError(_still_held(appliance, held_by), code="jobs_running")
    appliance.retired_at = now
    message = "Retired: its agent is not let in, and its history is kept."
    _tell(session, appliance, EventKind.RETIRED, message, now=now)
    shut_out(session, appliance_id=appliance.id)
    return appliance


def reinstate_appliance(
    session: Session, scope: Scope, appliance_id: str, *, now: datetime
) -> Appliance:
    """Take a retired appliance back into service; its agent is let in again.

    Raises:
        ConflictError: it was revoked.
    """
    _managed(session, scope, appliance_id)
    appliance = lock_appliance(session, appliance_id)
    _require_not_revoked(appliance)
    if appliance.retired_at is None:
        return appliance
    appliance.retired_at = None
    # Whatever it was when it went, it was silent since: it has to be heard first.
    appliance.state = ApplianceState.LOST
    _tell(session, appliance, EventKind.REINSTATED, "Back in service.", now=now)
    shut_out(session, appliance_id=appliance.id)
    return appliance


def revoke_appliance(
    session: Session, scope: Scope, appliance_id: str, *, now: datetime
) -> Appliance:
    """Shut an appliance out for good: its agent's secret is refused and its jobs count as lost."""
    appliance = _managed(session, scope, appliance_id)
    if appliance.revoked_at is None:
        appliance.revoked_at = now
        appliance.state = ApplianceState.LOST
        message = "Revoked for good: its agent is refused."
        _tell(session, appliance, EventKind.REVOKED, message, now=now)
        shut_out(session, appliance_id=appliance.id)
    return appliance


def _managed(session: Session, scope: Scope, appliance_id: str) -> Appliance:
    scope.require(Permission.MANAGE_APPLIANCES)
    return scope.get(session, Appliance, appliance_id, kind="appliance")


def _all_managed(session: Session, scope: Scope, appliance_ids: Sequence[str]) -> list[Appliance]:
    scope.require(Permission.MANAGE_APPLIANCES)
    statement = scope.select(select(Appliance).where(Appliance.id.in_(appliance_ids)), Appliance)
    found = {one.id: one for one in session.scalars(statement)}
    for ident in appliance_ids:
        if ident not in found:
            raise NotFoundError.of("appliance", ident)
    return [found[ident] for ident in dict.fromkeys(appliance_ids)]


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


def _tell(
    session: Session, appliance: Appliance, kind: EventKind, message: str, *, now: datetime
) -> None:
    add_event(session, appliance, kind, message, details=by_whom(session), now=now)


def _require_not_revoked(appliance: Appliance) -> None:
    if appliance.revoked_at is not None:
        raise ConflictError(
            f"The appliance {appliance.name!r} was revoked for good. Enrol its host as a new one.",
            code="appliance_revoked",
        )


def _still_held(appliance: Appliance, jobs: Sequence[str]) -> str:
    named = ", ".join(repr(name) for name in jobs[:_MOST_JOBS_NAMED])
    rest = len(jobs) - _MOST_JOBS_NAMED
    more = f" and {rest} more" if rest > 0 else ""
    return (
        f"Jobs run on {appliance.name!r}: {named}{more}. Drain the appliance and let them end, or "
        "stop them; then retire it."
    )
