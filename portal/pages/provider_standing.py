"""`/provider/standing`: how the tenant stands as a provider, and its appeal."""

from flask import flash, redirect, render_template, url_for
from flask.typing import ResponseReturnValue

from marketplace.consequences.policies import current_policy
from marketplace.consequences.service import appeal, get_standing, list_events
from portal.context import current_scope, database, now, require_marketplace
from portal.forms.standings import AppealForm
from portal.pages.common import Pages
from portal.presenters.standings import standing_view
from portal.query_string import asked_page
from tenants.permissions import Permission

pages = Pages("provider_standing", __name__, url_prefix="/provider/standing")
pages.before_request(require_marketplace)


@pages.form("")
def index() -> ResponseReturnValue:
    """Show the standing with its events; appeal against a suspension."""
    scope, form = current_scope(), AppealForm()
    scope.require_tenant()
    if form.is_submitted():
        scope.require(Permission.MANAGE_OFFERS)
    if form.validate_on_submit():
        with form.showing_errors():
            with database() as session:
                appeal(session, scope, form.text.data, now=now())
            flash("Appeal sent to the operator", "success")
            return redirect(url_for(".index"))
    with database() as session:
        view = standing_view(session, get_standing(session, scope, now=now()), now=now())
        events = list_events(session, scope, **asked_page())
        _, policy = current_policy(session)
    text = render_template(
        "market/standing.html", view=view, events=events, policy=policy, form=form
    )
    return text, form.status
