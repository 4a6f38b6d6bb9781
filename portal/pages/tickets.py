"""`/tickets`: requests for support, and their threads."""

from typing import Any

from flask import Response, flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.paging import Page
from marketplace.support.models import Ticket
from marketplace.support.people import users_of
from marketplace.support.scope import party_of
from marketplace.support.service import (
    add_message,
    assign_ticket,
    call_operator,
    close_ticket,
    create_ticket,
    get_attachment,
    get_ticket,
    list_entries,
    list_subject_events,
    list_tickets,
    rate_ticket,
    reopen_ticket,
    solve_ticket,
)
from marketplace.support.states import Party
from portal.context import current_scope, database, now
from portal.forms.tickets import RATINGS, MessageForm, RatingForm, TicketForm
from portal.pages.common import Pages, changing
from portal.presenters.artifacts import disposition
from portal.presenters.tickets import desk, shown_entries, shown_ticket, shown_tickets
from portal.query_string import asked_page
from tenants.models import Tenant, TenantState
from tenants.permissions import Permission

pages = Pages("tickets", __name__, url_prefix="/tickets")

VIEWS: dict[str, tuple[str, dict[str, Any]]] = {
    "waiting": ("Waiting for you", {"needs_answer": True}),
    "active": ("All open", {"is_active": True}),
    "late": ("Late", {"is_late": True}),
    "over": ("Solved", {"is_active": False}),
}
MAX_TENANTS = 500


@pages.get("")
def index() -> ResponseReturnValue:
    """List tickets: those that wait for this side, are open, late or solved."""
    view = request.args.get("view", "active")
    view = view if view in VIEWS else "active"
    search = request.args.get("search", "").strip()[:200]
    with database() as session:
        listed = list_tickets(
            session,
            current_scope(),
            desk=desk(),
            search=search,
            now=now(),
            **VIEWS[view][1],
            **asked_page(),
        )
        page = Page(shown_tickets(session, listed.items), listed.total, listed.number, listed.size)
    return render_template("tickets/index.html", page=page, view=view, views=VIEWS, search=search)


@pages.form("/new")
def add() -> ResponseReturnValue:
    """Open a ticket."""
    scope = current_scope()
    scope.require(Permission.USE_SUPPORT)
    values = {name: request.args.get(name, "")[:100] for name in ("subject_kind", "subject_id")}
    form = TicketForm(data={name: text for name, text in values.items() if text})
    form.arrange(tenants=_tenants(), has_marketplace=desk().has_marketplace)
    if form.validate_on_submit():
        with form.showing_errors():
            with database() as session:
                ticket = create_ticket(
                    session,
                    scope,
                    form.request(),
                    desk=desk(),
                    files=form.uploads(),
                    now=now(),
                )
            flash("Ticket opened. You get an email about each answer.", "success")
            return redirect(url_for(".show", ticket_id=ticket.id))
    return render_template("tickets/new.html", form=form), form.status


@pages.form("/<ticket_id>")
def show(ticket_id: str) -> ResponseReturnValue:
    """Show the thread of a ticket; add a message or a note."""
    scope = current_scope()
    with database() as session:
        ticket = get_ticket(session, scope, ticket_id, desk=desk())
        shown = shown_ticket(ticket, scope, at=now())
    form = MessageForm()
    form.arrange([(party, _name(ticket, party)) for party in shown.parties])
    if form.validate_on_submit():
        with form.showing_errors():
            with database() as session:
                message = form.request()
                add_message(
                    session,
                    scope,
                    ticket_id,
                    message,
                    desk=desk(),
                    files=form.uploads(),
                    now=now(),
                )
            flash("Note added" if message.is_internal else "Message sent", "success")
            return redirect(url_for(".show", ticket_id=ticket_id))
    return _page(ticket_id, form), form.status


pages.acts("/<ticket_id>/solve", solve_ticket, "Ticket solved", back=".show")
pages.acts("/<ticket_id>/reopen", reopen_ticket, "Ticket opened again", back=".show")
pages.acts("/<ticket_id>/close", close_ticket, "Ticket closed", back=".show")
pages.acts(
    "/<ticket_id>/call-operator", call_operator, "Operator called in", back=".show", name="call"
)


@pages.post("/<ticket_id>/assign")
@changing(back=".show")
def assign(session: Session, ticket_id: str) -> str:
    """Say who of this side works on a ticket."""
    user = request.form.get("user", "")[:254]
    assign_ticket(session, current_scope(), ticket_id, user, desk=desk(), now=now())
    return "Ticket assigned" if user else "Nobody is assigned any more"


@pages.post("/<ticket_id>/rate")
def rate(ticket_id: str) -> ResponseReturnValue:
    """Rate the support of a solved ticket."""
    scope, form = current_scope(), RatingForm()
    with database() as session:
        get_ticket(session, scope, ticket_id, desk=desk())
    if form.validate_on_submit():
        with form.showing_errors():
            rating, comment = int(form.rating.data), form.comment.data or ""
            with database() as session:
                rate_ticket(session, scope, ticket_id, rating, comment, desk=desk(), now=now())
            flash("Thank you for your rating", "success")
            return redirect(url_for(".show", ticket_id=ticket_id))
    message = MessageForm(formdata=None)
    return _page(ticket_id, message, rating_form=form), form.status


@pages.get("/<ticket_id>/attachments/<attachment_id>")
def download(ticket_id: str, attachment_id: str) -> Response:
    """Download a file of a message."""
    with database() as session:
        file = get_attachment(session, current_scope(), ticket_id, attachment_id, desk=desk())
        content, name = file.content, file.name
    # Never shown by browsers, whatever it is: it comes from another tenant.
    headers = {"Content-Disposition": disposition(name), "X-Content-Type-Options": "nosniff"}
    return Response(content, mimetype="application/octet-stream", headers=headers)


def _page(ticket_id: str, form: MessageForm, rating_form: RatingForm | None = None) -> str:
    scope = current_scope()
    with database() as session:
        ticket = get_ticket(session, scope, ticket_id, desk=desk())
        entries = list_entries(session, scope, ticket_id, desk=desk())
        events = list_subject_events(session, scope, ticket_id, desk=desk())
        shown = shown_ticket(ticket, scope, at=now())
        users = users_of(session, ticket, party_of(ticket, scope))
        thread = shown_entries(ticket, entries, scope)
    if "waits_for" in form:
        form.arrange([(party, _name(ticket, party)) for party in shown.parties])
    rated = {"rating": str(ticket.rating or ""), "comment": ticket.rating_comment}
    return render_template(
        "tickets/show.html",
        ticket=shown,
        entries=thread,
        events=events,
        users=users,
        form=form,
        rating_form=rating_form or RatingForm(formdata=None, data=rated),
        ratings=RATINGS,
        subject_url=_subject_url(ticket),
        Party=Party,
    )


def _subject_url(ticket: Ticket) -> str:
    """Return the page of a ticket's subject, where this side has one; "" elsewhere."""
    scope, ident = current_scope(), ticket.subject_id
    is_own = scope.tenant_id in {None, ticket.tenant_id}
    is_job_of_customer = is_own and party_of(ticket, scope) is not Party.PROVIDER
    pages_of = {
        "job": (is_job_of_customer, "jobs.show", "job_id"),
        "appliance": (is_own, "appliances.show", "appliance_id"),
        "invoice": (is_own, "billing_documents.show", "document_id"),
        "contract": (desk().has_marketplace, "contracts.show", "contract_id"),
    }
    is_shown, endpoint, name = pages_of.get(ticket.subject_kind.value, (False, "", ""))
    values: dict[str, Any] = {name: ident}
    return url_for(endpoint, **values) if is_shown and ident else ""


def _name(ticket: Ticket, party: Party) -> str:
    name = ticket.name_of(party)
    return name[:1].upper() + name[1:]


def _tenants() -> list[tuple[str, str]]:
    """Return the tenants that an operator may write to."""
    if current_scope().tenant_id is not None:
        return []
    statement = (
        select(Tenant.id, Tenant.name)
        .where(Tenant.state == TenantState.ACTIVE)
        .order_by(Tenant.name)
        .limit(MAX_TENANTS)
    )
    with database() as session:
        return [(row[0], row[1]) for row in session.execute(statement)]
