"""`/appliances/new` and `/appliances/tokens`: how appliances join, and join again."""

from datetime import timedelta

from flask import Blueprint, flash, redirect, render_template, url_for
from flask.typing import ResponseReturnValue

from core.errors import InvalidInputError
from portal.context import current_scope, database, now
from portal.forms.appliances import EnrolmentForm
from portal.pages.paging import PAGE_SIZE, page_number
from portal.showing.enrolment import enrol_command, install_command
from tenants.entry.enrolment_tokens import (
    create_enrolment_token,
    create_token_for_appliance,
    list_enrolment_tokens,
    revoke_enrolment_token,
)
from tenants.fleet.appliances import get_appliance
from tenants.models import EnrolmentToken
from tenants.permissions import Permission

pages = Blueprint("enrolment", __name__)

AGAIN_LIFETIME = timedelta(days=1)


@pages.get("/appliances/tokens")
def index() -> ResponseReturnValue:
    """List the enrolment tokens."""
    with database() as session:
        page = list_enrolment_tokens(
            session, current_scope(), page=page_number(), page_size=PAGE_SIZE
        )
    return render_template("appliances/tokens.html", page=page)


@pages.get("/appliances/new")
@pages.post("/appliances/new")
def add() -> ResponseReturnValue:
    """Make an enrolment token and show it once, with the commands to paste."""
    scope = current_scope()
    scope.require(Permission.MANAGE_APPLIANCES)
    form = EnrolmentForm()
    if not form.validate_on_submit():
        return render_template("appliances/new.html", form=form), 422 if form.errors else 200
    try:
        with database() as session:
            token, secret = create_enrolment_token(
                session,
                scope,
                name=form.name.data.strip(),
                site=form.site.data.strip(),
                region=form.region.data.strip(),
                labels=form.labels.data,
                uses=form.uses.data,
                lifetime=form.chosen_lifetime,
                now=now(),
            )
    except InvalidInputError as error:
        form.show_errors(error)
        return render_template("appliances/new.html", form=form), error.status
    return _shown_once(token, secret)


@pages.post("/appliances/tokens/<enrolment_token_id>/revoke")
def revoke(enrolment_token_id: str) -> ResponseReturnValue:
    """Let no more appliances join with a token."""
    with database() as session:
        revoke_enrolment_token(session, current_scope(), enrolment_token_id, now=now())
    flash("The token is revoked: nobody can join with it any more.", "success")
    return redirect(url_for(".index"))


@pages.post("/appliances/<appliance_id>/enrol-again")
def again(appliance_id: str) -> ResponseReturnValue:
    """Make a token with which one appliance joins again, and show it once."""
    scope = current_scope()
    with database() as session:
        appliance = get_appliance(session, scope, appliance_id)
        token, secret = create_token_for_appliance(
            session, scope, appliance_id, lifetime=AGAIN_LIFETIME, now=now()
        )
    return _shown_once(token, secret, name=appliance.name)


def _shown_once(token: EnrolmentToken, secret: str, *, name: str = "") -> str:
    return render_template(
        "appliances/token.html",
        token=token,
        appliance_name=name,
        install=install_command(),
        command=enrol_command(secret, again=token.appliance_id is not None),
    )
