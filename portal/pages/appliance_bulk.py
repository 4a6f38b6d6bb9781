"""What is done to several appliances at once, and the brake on mass outages."""

import logging
from collections.abc import Mapping
from typing import Final

from flask import Blueprint, flash, redirect, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.exc import SQLAlchemyError

from core.errors import ConflictError, InvalidInputError, NotFoundError
from portal.bulk import change_all
from portal.context import current_scope, database, now
from portal.forms.appliances import BulkForm
from portal.showing.appliances import address_of
from tenants.fleet.outages import present_outage, release_brake
from tenants.models import FleetOutage
from tenants.permissions import Permission

log = logging.getLogger(__name__)

pages = Blueprint("appliance_bulk", __name__)


@pages.post("/appliances/bulk")
def bulk() -> ResponseReturnValue:
    """Do something to all ticked appliances, and go back to the list as it was."""
    current_scope().require(Permission.MANAGE_APPLIANCES)
    form = BulkForm()
    back = redirect(address_of("appliances.index"))
    if not form.validate_on_submit():
        for faults in form.errors.values():
            flash(" ".join(faults), "danger")
        return back
    try:
        with database() as session:
            changed = change_all(session, current_scope(), form.request(), now=now())
    except (ConflictError, InvalidInputError, NotFoundError) as error:
        flash(error.message, "danger")
        return back
    flash(_TOLD[form.action.data].format(_counted(len(changed))), "success")
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


_TOLD: Final[Mapping[str, str]] = {
    "drain": "{} take no new jobs. Those that run go on.",
    "undrain": "{} take jobs again.",
    "label": "{} have the label now.",
    "unlabel": "{} do not have the label any more.",
    "move": "{} have another site now.",
    "retire": "{} are retired: their agents are not let in, and their history is kept.",
    "reinstate": "{} are back in service. Their agents come back by themselves if they run.",
}


def _counted(count: int) -> str:
    return f"{count} appliance{'' if count == 1 else 's'}"
