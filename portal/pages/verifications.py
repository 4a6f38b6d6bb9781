"""`/provider/checks`: whether appliances are what they claim to be, and what they fail for."""

from flask import render_template
from flask.typing import ResponseReturnValue
from sqlalchemy import select

from marketplace.models import Offer
from marketplace.verification.compliance import expiring_facts
from marketplace.verification.views import (
    get_verification,
    list_challenges,
    list_verifications,
    verify_now,
)
from portal.context import current_scope, database, now, portal, require_marketplace
from portal.pages.common import Pages
from portal.query_string import asked_page, chosen
from tenants.models import VerificationState

pages = Pages("verifications", __name__, url_prefix="/provider/checks")
pages.before_request(require_marketplace)

CHALLENGES_SHOWN = 10


@pages.get("")
def index() -> ResponseReturnValue:
    """List the appliances that are verified, and compliance facts that expire."""
    scope, state = current_scope(), chosen(VerificationState, "state")
    with database() as session:
        page = list_verifications(session, scope, state=state, **asked_page())
        own = select(Offer).where(Offer.tenant_id == scope.tenant_id)
        facts = expiring_facts(session.scalars(own).all(), now().date()) if scope.tenant_id else []
    return render_template(
        "market/checks.html",
        page=page,
        facts=facts,
        chosen_state=state,
        states=list(VerificationState),
        today=now().date(),
        is_required=portal().settings.marketplace_requires_verification,
    )


@pages.get("/<appliance_id>")
def show(appliance_id: str) -> ResponseReturnValue:
    """Show what was found of an appliance, with its challenges."""
    with database() as session:
        scope = current_scope()
        shown = get_verification(session, scope, appliance_id)
        challenges = list_challenges(session, scope, appliance_id, page_size=CHALLENGES_SHOWN)
    return render_template("market/check.html", shown=shown, challenges=challenges)


pages.acts(
    "/<appliance_id>/verify",
    verify_now,
    "{.name} is verified as soon as it has no jobs",
    back=".show",
)
