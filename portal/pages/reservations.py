"""`/jobs/reservations`: appliances that are kept for a project at certain times."""

from decimal import Decimal

from flask import flash, redirect, render_template, url_for
from flask.typing import ResponseReturnValue
from wtforms.fields import SelectChoice

from jobqueue.fairshare.accounts import read_projects
from jobqueue.reservations.bookings import customers_of
from jobqueue.reservations.gaps import open_gaps
from jobqueue.reservations.models import Reservation
from jobqueue.reservations.periods import periods_of
from jobqueue.reservations.service import (
    create_reservation,
    delete_reservation,
    get_reservation,
    list_reservations,
    update_reservation,
)
from jobqueue.reservations.views import active_bookings, bookings_of, read_grants
from marketplace.charges.reserved import cancellations
from portal.context import current_scope, database, now, portal
from portal.forms.reservations import MAINTENANCE, ReservationForm
from portal.pages.common import Pages
from portal.query_string import asked_page
from tenants.fleet.appliances import appliance_names
from tenants.permissions import Permission

pages = Pages("reservations", __name__, url_prefix="/jobs/reservations")


@pages.form("")
def index() -> ResponseReturnValue:
    """List reservations; add one."""
    return _save(ReservationForm(), None)


@pages.form("/<reservation_id>")
def edit(reservation_id: str) -> ResponseReturnValue:
    """Change a reservation."""
    scope = current_scope()
    with database() as session:
        reservation = get_reservation(session, scope, reservation_id)
        names = appliance_names(session, scope.tenants)
    form = ReservationForm(obj=reservation)
    if not form.is_submitted():
        form.appliance_ids.data = [names.get(ident, ident) for ident in reservation.appliance_ids]
    return _save(form, reservation)


pages.acts("/<reservation_id>/delete", delete_reservation, "Reservation deleted", name="remove")


def _save(form: ReservationForm, reservation: Reservation | None) -> ResponseReturnValue:
    scope = current_scope()
    tenant_id = scope.require_tenant()
    if form.is_submitted():
        scope.require(Permission.MANAGE_APPLIANCES)
    with database() as session:
        projects = read_projects(session, tenant_id).rows
        has_grants = bool(read_grants(session, tenant_id, now=now()))
    if not has_grants and not (reservation and reservation.appliance_count):
        form.without_rentals()
    names = {ident: project.name for ident, project in projects.items()}
    form.project_id.choices = [
        *(
            SelectChoice(ident, name)
            for ident, name in sorted(names.items(), key=lambda row: row[1])
        ),
        SelectChoice("", MAINTENANCE),
    ]
    if form.validate_on_submit():
        with form.showing_errors():
            with database() as session:
                if reservation is None:
                    create_reservation(session, scope, form.request(), now=now())
                else:
                    update_reservation(session, scope, reservation.id, form.request(), now=now())
            flash("Reservation saved", "success")
            return redirect(url_for(".index"))
    with database() as session:
        page = list_reservations(session, scope, **asked_page())
        appliances = appliance_names(session, scope.tenants)
        booked = bookings_of(session, [row.id for row in page.items if row.appliance_count])
        gaps = open_gaps(session, [row for bookings in booked.values() for row in bookings])
        costs = cancellations(session, booked, now=now())
        by_customers = active_bookings(session, {tenant_id})
        customers = customers_of(session, by_customers)
    text = render_template(
        "jobs/reservations.html",
        page=page,
        reservation=reservation,
        form=form,
        projects=names,
        appliances=appliances,
        booked=booked,
        costs=costs,
        away={ident: sum(row.id in gaps for row in bookings) for ident, bookings in booked.items()},
        currency=portal().settings.billing_currency,
        prices={row.id: Decimal(str(row.max_gpu_hour_price)) for row in page.items},
        by_customers=by_customers,
        customers=customers,
        current_time=now(),
        next_periods={
            **{row.id: periods_of(row, now=now(), max_count=1) for row in page.items},
            **{row.id: periods_of(row, now=now(), max_count=1) for row in by_customers},
        },
    )
    return text, form.status
