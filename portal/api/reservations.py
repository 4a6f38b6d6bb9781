"""`/reservations`: appliances or GPUs that are kept for a project at certain times."""

from collections.abc import Sequence
from typing import Any

from marshmallow import Schema, fields
from sqlalchemy.orm import Session

from jobqueue.reservations.checks import ReservationRequest
from jobqueue.reservations.models import Reservation
from jobqueue.reservations.periods import periods_of
from jobqueue.reservations.service import (
    RESERVATION_SORTS,
    create_reservation,
    delete_reservation,
    get_reservation,
    list_reservations,
    update_reservation,
)
from marketplace.charges.reserved import Cancellation, cancellations
from portal.api.blueprint import APIBlueprint
from portal.api.objects import Objects
from portal.api.schemas import about, instant, page_query, values_of
from portal.api.spec_schemas import DecimalField, request_schema, response_schema
from portal.context import now
from tenants.permissions import Permission

reservations = APIBlueprint(
    "Reservations",
    "/reservations",
    "Appliances or GPUs that are kept for a project at certain times.",
    changes=Permission.MANAGE_APPLIANCES,
)


class ReservationRequestSchema(request_schema(ReservationRequest)):  # type: ignore[misc] # a class made at run time
    """A new reservation, or the replacement of one."""


class PeriodSchema(Schema):
    """From when to when a reservation applies."""

    begins_at = instant()
    ends_at = instant()


class CancellationSchema(Schema):
    """What is charged of a reservation of rented appliances if it is cancelled now."""

    hours = fields.Integer(**about("Of the contract, in which it is charged."))
    gpu_hours = fields.Float(**about("That are reserved in this time."))
    amount = DecimalField()


class ReservationSchema(response_schema(ReservationRequest)):  # type: ignore[misc] # a class made at run time
    """A reservation."""

    id = fields.String()
    tenant_id = fields.String()
    periods = fields.List(
        fields.Nested(PeriodSchema), **about("The next ten, the one that goes on included.")
    )
    cancellation = fields.Nested(
        CancellationSchema, **about("Charged if it is cancelled now; nothing for own appliances.")
    )
    created_by = fields.String(allow_none=True)
    created_at = instant()


def _shown(session: Session, reservations: Sequence[Reservation]) -> list[dict[str, Any]]:
    rented = [row.id for row in reservations if row.appliance_count]
    costs = cancellations(session, rented, now=now())
    return [
        values_of(
            ReservationSchema,
            row,
            cancellation=costs.get(row.id, Cancellation()),
            periods=[
                {"begins_at": begin, "ends_at": end} for begin, end in periods_of(row, now=now())
            ],
        )
        for row in reservations
    ]


objects = Objects(
    reservations,
    "/<reservation_id>",
    read=get_reservation,
    answer=ReservationSchema,
    shown=_shown,
    model=Reservation,
    # Without what changes with the time.
    etag=ReservationSchema(exclude=("periods", "cancellation")),
    body=ReservationRequestSchema,
    request=ReservationRequest,
)
objects.lists(
    "List reservations.",
    list_reservations,
    query=page_query(RESERVATION_SORTS, default="name"),
)
objects.creates(
    "Reserve appliances or GPUs for a project.\n\n"
    "Another reservation of the same GPUs is refused with the nearest free time.",
    create_reservation,
)
objects.shows("Return a reservation.")
objects.replaces("Replace a reservation; it applies from the next placement.", update_reservation)
objects.deletes("Delete a reservation.", delete_reservation)
