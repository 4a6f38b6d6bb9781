"""What page and API do to several appliances at once: to all of them or to none.

Each appliance is changed as it would be alone. Where one can't be, the reason is told by its id,
and the transaction that did the others is given up.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from sqlalchemy.orm import Session

from core.errors import ConflictError, InvalidInputError, VedetteError
from jobqueue.retirement import retire
from tenants.fleet.appliances import (
    ApplianceChanges,
    change_appliance,
    drain_appliance,
    label_appliances,
    managed_appliances,
    reinstate_appliance,
    undrain_appliance,
)
from tenants.models import Appliance
from tenants.scope import Scope

Each = Callable[[Session, Scope, str, datetime], Appliance]


class BulkAction(StrEnum):
    """What can be done to several appliances at once."""

    DRAIN = "drain"
    UNDRAIN = "undrain"
    LABEL = "label"
    MOVE = "move"
    RETIRE = "retire"
    REINSTATE = "reinstate"


class BulkRefusedError(ConflictError):
    """Some of the appliances can't be changed, so none was."""

    default_code = "bulk_refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkRequest:
    """What to do to which appliances.

    Attributes:
        appliance_ids: which; one that is named twice counts once.
        action: what to do.
        labels: for `label`: what to put on, by key; None takes the key off.
        site: for `move`: where they stand from now on; None leaves it as it is.
        region: likewise.
    """

    appliance_ids: Sequence[str]
    action: BulkAction
    labels: Mapping[str, str | None] = field(default_factory=dict)
    site: str | None = None
    region: str | None = None


def change_all(
    session: Session, scope: Scope, request: BulkRequest, *, now: datetime
) -> list[Appliance]:
    """Change every appliance of a request, or none.

    Returns:
        The appliances in the order in which they were named.

    Raises:
        InvalidInputError: the action lacks what it needs, or is given what is not for it.
        NotFoundError: names by id those that are not there; nothing was changed.
        BulkRefusedError: says by id why appliances can't be changed; nothing was changed.
    """
    _check(request)
    ids = list(dict.fromkeys(request.appliance_ids))
    managed_appliances(session, scope, ids)
    each = _worker(request)
    changed: list[Appliance] = []
    refused: dict[str, VedetteError] = {}
    for ident in ids:
        try:
            changed.append(each(session, scope, ident, now))
        except (ConflictError, InvalidInputError) as error:
            refused[ident] = error
    if refused:
        raise _refusal(refused, count=len(ids))
    return changed


def _check(request: BulkRequest) -> None:
    is_label, is_move = request.action is BulkAction.LABEL, request.action is BulkAction.MOVE
    is_moved = request.site is not None or request.region is not None
    errors: dict[str, list[str]] = {}
    if is_label != bool(request.labels):
        errors["labels"] = [_NEEDED.format("labels") if is_label else _OF_OTHERS.format("label")]
    if is_move and not is_moved:
        errors["site"] = [_NEEDED.format("a site or a region")]
    if is_moved and not is_move:
        errors["site"] = [_OF_OTHERS.format("move")]
    if errors:
        raise InvalidInputError(
            f"{request.action.value} can't be done. "
            f"{' '.join(fault for faults in errors.values() for fault in faults)}",
            errors=errors,
        )


_NEEDED = "Give {} for this action."
_OF_OTHERS = "This is for the action '{}' only."


def _worker(request: BulkRequest) -> Each:
    if request.action is BulkAction.LABEL:
        added = {key: value for key, value in request.labels.items() if value is not None}
        removed = [key for key, value in request.labels.items() if value is None]
        return lambda session, scope, ident, now: label_appliances(
            session, scope, [ident], added=added, removed=removed, now=now
        )[0]
    if request.action is BulkAction.MOVE:
        changes = ApplianceChanges(site=request.site, region=request.region)
        return lambda session, scope, ident, now: change_appliance(
            session, scope, ident, changes, now=now
        )
    work = _SIMPLE[request.action]
    return lambda session, scope, ident, now: work(session, scope, ident, now=now)


_SIMPLE: Mapping[BulkAction, Callable[..., Appliance]] = {
    BulkAction.DRAIN: drain_appliance,
    BulkAction.UNDRAIN: undrain_appliance,
    BulkAction.RETIRE: retire,
    BulkAction.REINSTATE: reinstate_appliance,
}


def _refusal(refused: Mapping[str, VedetteError], *, count: int) -> VedetteError:
    first = next(iter(refused.values()))
    return BulkRefusedError(
        f"Nothing was changed: {len(refused)} of {count} appliances can't be. The first: "
        f"{first.message}",
        errors={ident: [error.message] for ident, error in refused.items()},
    )
