"""`/notification-policy`: routes, inhibition rules and time intervals as YAML; a preview."""

from flask import flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from alerting.notification.inhibition import printed_rules
from alerting.notification.policies import (
    Destination,
    preview_policy,
    read_inhibit_rules,
    read_policy,
    read_time_intervals,
    save_policy,
)
from alerting.notification.receivers import list_receivers
from alerting.notification.routes import printed
from portal.context import current_scope, database, now
from portal.forms.alerts import PolicyForm
from portal.pages.common import Pages

pages = Pages("notification_policy", __name__)


@pages.form("/notification-policy")
def index() -> ResponseReturnValue:
    """Show, test or replace the tree of routes."""
    scope = current_scope()
    with database() as session:
        root = read_policy(session, scope)
        receivers = [receiver.name for receiver in list_receivers(session, scope)]
        rules = read_inhibit_rules(session, scope)
        intervals = read_time_intervals(session, scope)
    form = PolicyForm(
        data={
            "route": printed(root),
            "inhibit_rules": printed_rules(rules),
            "time_intervals": intervals,
        }
    )
    if form.validate_on_submit():
        with form.showing_errors():
            with database() as session:
                save_policy(
                    session,
                    scope,
                    form.route.data,
                    inhibit_rules=form.inhibit_rules.data,
                    time_intervals=form.time_intervals.data,
                    now=now(),
                )
            flash("Notification policy saved", "success")
            return redirect(url_for(".index"))
    destinations: list[Destination] | None = None
    labels = request.args.get("labels", "")
    if labels:
        with database() as session:
            destinations = preview_policy(session, scope, _labels(labels), now=now())
    text = render_template(
        "notification_policy.html",
        form=form,
        root=root,
        receivers=receivers,
        labels=labels,
        destinations=destinations,
    )
    return text, form.status


def _labels(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split(","))
    return {label.strip(): value.strip() for label, _, value in pairs if label.strip()}
