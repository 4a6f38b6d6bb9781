"""What is done to several appliances at once, and the brake on mass outages."""

import logging
from collections.abc import Callable, Mapping
from typing import Final

from flask import Blueprint, flash, redirect, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from core.errors import InvalidInputError, NotFoundError
from portal.context import current_scope, database, now
from portal.forms.appliances import BulkForm
from portal.showing.appliances import address_of
from tenants.fleet.appliances import drain_appliances, label_appliances, undrain_appliances
from tenants.fleet.outages import present_outage, release_brake
from tenants.models import Appliance, FleetOutage
from tenants.permissions import Permission

log = logging.getLogger(__name__)

pages = Blueprint("appliance_bulk", __name__)

Work = Callable[[Session, BulkForm], list[Appliance]]


@pages.post("/appliances/bulk")
def bulk() -> ResponseReturnValue:
    """Drain, undrain or label the ticked appliances, and go back to the list as it was."""
    current_scope().require(Permission.MANAGE_APPLIANCES)
    form = BulkForm()
    back = redirect(address_of("appliances.index"))
    if not form.validate_on_submit():
        for faults in form.errors.values():
            flash(" ".join(faults), "danger")
        return back
    work, text = _WORK[form.action.data]
    try:
        with database() as session:
            changed = work(session, form)
    except (InvalidInputError, NotFoundError) as error:
        flash(error.message, "danger")
        return back
    flash(text.format(_counted(len(changed))), "success")
    return back


@pages.post("/appliances/release-brake")
def release() -> ResponseReturnValue:
    """Let the silent appliances be called lost."""
    with database() as session:
        release_brake(session, current_scope(), now=now())
    flash("The brake is released: appliances that stay silent are called lost.", "success")
    return redirect(url_for("appliances.index"))


@pages.app_template_global("fleet_outage")
def fleet_outage() -> FleetOutage | None:
    """Return the outage for which the brake holds now.

    Every page asks, those that tell of a fault too: where the database is away there is none.
    """
    try:
        with database() as session:
            return present_outage(session)
    except SQLAlchemyError as error:
        log.warning("whether the brake holds can't be read: %s", error)
        return None


def _drain(session: Session, form: BulkForm) -> list[Appliance]:
    return drain_appliances(session, current_scope(), form.appliance_id.data, now=now())


def _undrain(session: Session, form: BulkForm) -> list[Appliance]:
    return undrain_appliances(session, current_scope(), form.appliance_id.data, now=now())


def _label(session: Session, form: BulkForm) -> list[Appliance]:
    return label_appliances(
        session, current_scope(), form.appliance_id.data, added=form.pairs, now=now()
    )


def _unlabel(session: Session, form: BulkForm) -> list[Appliance]:
    return label_appliances(
        session, current_scope(), form.appliance_id.data, added={}, removed=form.pairs, now=now()
    )


_WORK: Final[Mapping[str, tuple[Work, str]]] = {
    "drain": (_drain, "{} take no new jobs. Those that run go on."),
    "undrain": (_undrain, "{} take jobs again."),
    "label": (_label, "{} have the label now."),
    "unlabel": (_unlabel, "{} do not have the label any more."),
}


def _counted(count: int) -> str:
    return f"{count} appliance{'' if count == 1 else 's'}"
