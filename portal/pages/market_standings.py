"""`/console/market/standings`: how providers stand, appeals, and the policy, for operators."""

from flask import flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.orm import Session

from core.errors import NotFoundError
from marketplace.consequences.models import MAX_ANSWER_LENGTH
from marketplace.consequences.policies import current_policy, list_policies, set_policy
from marketplace.consequences.preview import preview_policy
from marketplace.consequences.service import (
    accept_appeal,
    get_standing,
    list_appeals,
    list_events,
    list_standings,
    reinstate,
    reject_appeal,
    suspend,
)
from marketplace.consequences.states import AppealState, StandingState
from portal.context import current_scope, database, mail_url, now, require_marketplace
from portal.forms.standings import PolicyForm
from portal.pages.common import Pages, changing
from portal.presenters.standings import standing_view
from portal.query_string import PAGE_SIZE, asked_page, chosen
from tenants.permissions import Permission

pages = Pages("market_standings", __name__, url_prefix="/console/market/standings")
pages.before_request(require_marketplace)


@pages.get("")
def index() -> ResponseReturnValue:
    """List appeals that wait, and how providers stand."""
    scope = current_scope()
    scope.require(Permission.MANAGE_TENANTS)
    state = chosen(StandingState, "state")
    with database() as session:
        appeals = list_appeals(session, scope, state=AppealState.OPEN, page_size=PAGE_SIZE)
        names = {
            appeal.tenant_id: standing_view(
                session, get_standing(session, scope, appeal.tenant_id, now=now()), now=now()
            ).account.public_name
            for appeal in appeals.items
        }
        standings = list_standings(session, scope, state=state, **asked_page())
        number, _ = current_policy(session)
    return render_template(
        "market/standings.html",
        appeals=appeals,
        names=names,
        standings=standings,
        number=number,
        state=state,
        states=list(StandingState),
        max_length=MAX_ANSWER_LENGTH,
    )


@pages.get("/<tenant_id>")
def show(tenant_id: str) -> ResponseReturnValue:
    """Show how a provider stands, its events and appeals."""
    scope = current_scope()
    scope.require(Permission.MANAGE_TENANTS)
    with database() as session:
        standing = get_standing(session, scope, tenant_id, now=now())
        view = standing_view(session, standing, now=now())
        events = list_events(session, scope, tenant_id, **asked_page())
        appeals = list_appeals(session, scope, tenant_id=tenant_id, page_size=PAGE_SIZE)
    return render_template(
        "market/console_standing.html",
        view=view,
        events=events,
        appeals=appeals,
        max_length=MAX_ANSWER_LENGTH,
    )


@pages.post("/<tenant_id>/<standing_action>")
@changing(back=".show")
def change(session: Session, tenant_id: str, standing_action: str) -> str:
    """Suspend or reinstate a provider."""
    actions = {"suspend": (suspend, "suspended"), "reinstate": (reinstate, "reinstated")}
    scope = current_scope()
    scope.require(Permission.MANAGE_TENANTS)
    if standing_action not in actions:
        raise NotFoundError.of("action", standing_action)
    act, verb = actions[standing_action]
    reason = request.form.get("reason", "")
    changed = act(session, scope, tenant_id, reason, now=now(), mail_url=mail_url())
    return f"{standing_view(session, changed, now=now()).account.public_name} {verb}"


@pages.post("/appeals/<appeal_id>/<appeal_decision>")
@changing(back=".index")
def decide(session: Session, appeal_id: str, appeal_decision: str) -> str:
    """Accept or reject an appeal."""
    decisions = {"accept": accept_appeal, "reject": reject_appeal}
    scope = current_scope()
    scope.require(Permission.MANAGE_TENANTS)
    if appeal_decision not in decisions:
        raise NotFoundError.of("decision", appeal_decision)
    answer = request.form.get("answer", "")
    decided = decisions[appeal_decision](
        session, scope, appeal_id, answer, now=now(), mail_url=mail_url()
    )
    return f"Appeal {decided.state.value}"


@pages.form("/policy")
def policy() -> ResponseReturnValue:
    """Show the policy and its versions; preview or save a new one."""
    scope = current_scope()
    scope.require(Permission.MANAGE_TENANTS)
    with database() as session:
        number, present = current_policy(session)
        versions = list_policies(session, scope, **asked_page())
    form = PolicyForm.of(present)
    preview = None
    if form.validate_on_submit():
        with form.showing_errors():
            if "preview" in request.form:
                with database() as session:
                    preview = preview_policy(session, scope, form.policy(), now=now())
            else:
                with database() as session:
                    note = form.note.data or ""
                    saved = set_policy(session, scope, form.policy(), note, now=now())
                text = f"Version {saved.number} of the policy applies within five minutes"
                flash(text, "success")
                return redirect(url_for(".policy"))
    text = render_template(
        "market/standing_policy.html",
        form=form,
        number=number,
        versions=versions,
        preview=preview,
    )
    return text, form.status
