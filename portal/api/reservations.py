"""`/reservations`: appliances or GPUs that are kept for a project at certain times."""

from marshmallow import Schema, fields

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
from portal.api.blueprint import APIBlueprint
from portal.api.objects import Objects
from portal.api.schemas import instant, page_query
from portal.api.spec_schemas import request_schema, response_schema
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


def _periods(reservation: Reservation) -> list[dict[str, object]]:
    return [
        PeriodSchema().dump({"begins_at": begin, "ends_at": end})
        for begin, end in periods_of(reservation, now=now())
    ]


class ReservationSchema(response_schema(ReservationRequest)):  # type: ignore[misc] # a class made at run time
    """A reservation."""

    id = fields.String()
    tenant_id = fields.String()
    periods = fields.Function(
        _periods,
        metadata={
            "type": "array",
            "items": {"type": "object"},
            "description": "The next ten, the one that goes on included.",
        },
    )
    created_by = fields.String(allow_none=True)
    created_at = instant()


objects = Objects(
    reservations,
    "/<reservation_id>",
    read=get_reservation,
    answer=ReservationSchema,
    model=Reservation,
    # Without what changes with the time.
    etag=ReservationSchema(exclude=("periods",)),
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
