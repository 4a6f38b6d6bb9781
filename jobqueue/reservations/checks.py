"""Checks of a reservation before it is saved: names, appliances, times, and other reservations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Any

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from core.quantities import format_duration
from core.schedule_times import check_schedule, check_time_zone
from core.spec import About
from jobqueue.jobs.appliance_requests import requirement_errors
from jobqueue.placement.views import period_text
from jobqueue.projects.models import Project
from jobqueue.reservations.bookings import MAX_BOOKED, busy_periods, choose, kept_on
from jobqueue.reservations.models import MAX_NAME_LENGTH, Booking, Reservation
from jobqueue.reservations.periods import CHECKED_FOR, TakenTimes, overlaps_itself, periods_until
from protocol.job_spec import MAX_ENTRIES, MAX_PRICE
from tenants.fleet.states import in_service
from tenants.models import Appliance
from tenants.models.appliances import decode_inventory

MAX_APPLIANCES = 1000
MIN_DURATION = timedelta(minutes=5)
MAX_DURATION = timedelta(days=90)
# How often one may begin in the time in which overlaps are looked for.
MAX_BEGINS = 1000
MAX_AHEAD = timedelta(days=366)
_SECOND = timedelta(seconds=1)
Errors = dict[str, list[str]]
Columns = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationRequest:
    """A reservation as a user writes it."""

    name: str
    schedule: Annotated[
        str,
        About("When it begins: a time such as 2026-12-01T22:00, cron, or an ISO 8601 interval."),
    ]
    duration_seconds: Annotated[int, About("How long it lasts, such as `8h`.")]
    appliance_ids: Annotated[
        Sequence[str], About("Appliances, by ID or name; empty for rented ones.")
    ] = ()
    project_id: Annotated[
        str | None,
        About("Whose jobs may start there, by ID or name; null: nobody's, for maintenance."),
    ] = None
    gpus: Annotated[int | None, About("Of each appliance; null is the whole appliance.")] = None
    time_zone: str = "UTC"
    max_gpu_hour_price: Annotated[
        float,
        About(
            "Highest price of a GPU for an hour, for which rented appliances are reserved; 0 is "
            "own appliances.",
            "Highest price of a GPU-hour",
            maximum=MAX_PRICE,
        ),
    ] = 0.0
    appliance_count: Annotated[
        int, About("Rented appliances to reserve; 0 for own ones.", maximum=MAX_BOOKED)
    ] = 0
    gpu_model: Annotated[
        str, About("A word in the model of rented GPUs, such as H100; empty for any.")
    ] = ""
    rental: Annotated[
        Mapping[str, str],
        About(
            "What rented appliances must meet: `region`, `compliance`, `availability` in percent, "
            "`reputation` from 0 to 1.",
            maximum=MAX_ENTRIES,
        ),
    ] = field(default_factory=dict)

    @property
    def is_rented(self) -> bool:
        """Return whether it is about rented appliances."""
        return self.max_gpu_hour_price > 0


def checked(
    session: Session, reservation: Reservation, request: ReservationRequest, *, now: datetime
) -> tuple[Columns, list[Booking], Errors]:
    """Return the columns of a request for a new or stored reservation, what it books, and errors.

    Whether others are in the way, or enough rented appliances free, is only looked for when all
    else is right.

    Raises:
        InvalidInputError: other reservations begin too often to be compared.
    """
    tenant_id = reservation.tenant_id
    appliances: list[Appliance] = []
    missing: list[str] = []
    if not request.is_rented:
        appliances, missing = _appliances(session, tenant_id, request.appliance_ids)
    columns: Columns = {
        "name": request.name.strip(),
        "project_id": _project_id(session, tenant_id, request.project_id),
        "appliance_ids": [appliance.id for appliance in appliances],
        "gpus": request.gpus,
        "schedule": _stored_schedule(request.schedule),
        "time_zone": request.time_zone,
        "duration_seconds": max(0, min(request.duration_seconds, 2 * MAX_DURATION // _SECOND)),
        "appliance_count": request.appliance_count,
        "gpu_model": request.gpu_model.strip(),
        "max_gpu_hour_price": request.max_gpu_hour_price,
        "stored_rental": dict(request.rental) or None,
    }
    errors = {
        **_name_errors(session, reservation, columns["name"]),
        **_project_errors(columns, request.project_id),
        **({"appliance_ids": missing} if missing else {}),
        **_gpu_errors(appliances, request.gpus),
        **_schedule_errors(columns, now=now),
        **_rental_errors(request),
    }
    if errors:
        return columns, [], errors
    periods = periods_until(Reservation(**columns), now + CHECKED_FOR, now=now)
    until = max(now + CHECKED_FOR, periods[-1][1]) + MAX_DURATION
    if request.is_rented:
        choice = choose(session, reservation, columns, periods, now=now, until=until)
        problem = choice.problem
        return columns, choice.bookings, {"appliance_count": [problem]} if problem else {}
    providers = {appliance.id: tenant_id for appliance in appliances}
    others = kept_on(session, reservation, providers, now=now, until=until)
    taken = TakenTimes(
        {
            busy
            for appliance in appliances
            for busy in busy_periods(
                _gpu_count(appliance), others.get(appliance.id, ()), columns["gpus"]
            )
        }
    )
    clash = taken.overlap(periods)
    if clash is None:
        return columns, [], {}
    (begin, end), holder = clash
    problem = f"{holder} has it from {period_text(begin, end)}."
    free = taken.nearest_free(periods, now=now, until=until)
    nearest = "No other time is free."
    if free is not None:
        nearest = f"The nearest free time is from {period_text(*free)}."
    return columns, [], {"schedule": [f"{problem[0].upper()}{problem[1:]} {nearest}"]}


def _name_errors(session: Session, reservation: Reservation, name: str) -> Errors:
    if not 1 <= len(name) <= MAX_NAME_LENGTH:
        return {"name": [f"The name must have 1 to {MAX_NAME_LENGTH} characters."]}
    same = select(Reservation.id).where(
        Reservation.tenant_id == reservation.tenant_id, Reservation.name == name
    )
    if session.scalar(same) not in {None, reservation.id}:
        return {"name": [f"A reservation named {name!r} already exists."]}
    return {}


def _project_errors(columns: Columns, wanted: str | None) -> Errors:
    if wanted and columns["project_id"] is None:
        return {"project_id": [f"There is no project {wanted!r}."]}
    return {}


def _project_id(session: Session, tenant_id: str, wanted: str | None) -> str | None:
    """Return the id of a project, given by id or name; None if there is none."""
    listed = select(Project.id).where(
        Project.tenant_id == tenant_id,
        Project.archived_at.is_(None),
        or_(Project.id == wanted, Project.name == wanted),
    )
    return session.scalar(listed) if wanted else None


def _appliances(
    session: Session, tenant_id: str, wanted: Sequence[str]
) -> tuple[list[Appliance], list[str]]:
    """Return appliances by id or name, and what is wrong with the list."""
    if not 1 <= len(wanted) <= MAX_APPLIANCES:
        return [], [f"Choose 1 to {MAX_APPLIANCES} appliances."]
    listed = select(Appliance).where(
        Appliance.tenant_id == tenant_id,
        in_service(),
        or_(Appliance.id.in_(wanted), Appliance.name.in_(wanted)),
    )
    appliances = list(session.scalars(listed.order_by(Appliance.name)).unique())
    names = {text for appliance in appliances for text in (appliance.id, appliance.name)}
    unknown = [text for text in wanted if text not in names]
    errors = [f"There is no appliance {text!r}." for text in unknown[:5]]
    nodes = [appliance.name for appliance in appliances if appliance.connector_id is not None]
    errors += [f"{name!r} is a node of a cluster. Reserve it there." for name in nodes[:5]]
    return appliances, errors


def _gpu_errors(appliances: Sequence[Appliance], gpus: int | None) -> Errors:
    if gpus is None:
        return {}
    if gpus < 1:
        return {"gpus": ["Enter 1 or more GPUs, or leave it empty for whole appliances."]}
    small = [appliance for appliance in appliances if _gpu_count(appliance) < gpus]
    if not small:
        return {}
    has = f"{small[0].name} has {_gpu_count(small[0])} GPUs"
    return {"gpus": [f"{has}, {gpus} requested."]}


def _gpu_count(appliance: Appliance) -> int:
    return len(decode_inventory(appliance.inventory).gpus)


def _stored_schedule(text: str) -> str:
    """Return the schedule; of a single time such as `2026-12-01T22:00`, one that is due once."""
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        return text.strip()
    return f"R1/{at.isoformat()}/P1D"


def _schedule_errors(columns: Columns, *, now: datetime) -> Errors:
    errors = Errors()
    for name, check in (("time_zone", check_time_zone), ("schedule", check_schedule)):
        try:
            check(columns[name])
        except ValueError as error:
            errors[name] = [str(error)]
    if not MIN_DURATION <= timedelta(seconds=columns["duration_seconds"]) <= MAX_DURATION:
        limits = f"{format_duration(MIN_DURATION.seconds)} to {MAX_DURATION.days} days"
        errors["duration_seconds"] = [f"A reservation lasts {limits}."]
    if errors:
        return errors
    until = now + CHECKED_FOR
    periods = periods_until(Reservation(**columns), until, now=now, max_count=MAX_BEGINS + 1)
    if not periods:
        return {"schedule": ["It has no time in the future."]}
    if periods[0][0] > now + MAX_AHEAD:
        return {"schedule": [f"It begins after {MAX_AHEAD.days} days; choose an earlier time."]}
    if overlaps_itself(periods):
        problem = "It begins again before it ends"
        return {"schedule": [f"{problem}. Choose fewer times or a shorter duration."]}
    if len(periods) > MAX_BEGINS:
        often = f"It begins more than {MAX_BEGINS} times in {CHECKED_FOR.days} days"
        return {"schedule": [f"{often}. Choose fewer times, each for longer."]}
    return {}


def _rental_errors(request: ReservationRequest) -> Errors:
    """Return what is wrong with the fields about rented appliances."""
    if not request.is_rented:
        fields = {
            "max_gpu_hour_price": request.max_gpu_hour_price,
            "appliance_count": request.appliance_count,
            "gpu_model": request.gpu_model,
            "rental": request.rental,
        }
        without = "is for rented appliances; set max_gpu_hour_price, too, or remove it."
        return {name: [f"{name} {without}"] for name, value in fields.items() if value}
    errors = Errors()
    if not 0 < request.max_gpu_hour_price <= MAX_PRICE:
        errors["max_gpu_hour_price"] = [f"Enter an amount above 0, up to {MAX_PRICE:,}."]
    if not 1 <= request.appliance_count <= MAX_BOOKED:
        errors["appliance_count"] = [f"Enter how many to reserve, 1 to {MAX_BOOKED}."]
    if request.appliance_ids:
        errors["appliance_ids"] = ["Leave it empty: rented appliances are chosen by their offers."]
    if request.project_id is None:
        errors["project_id"] = ["Choose the project whose jobs may start there."]
    if len(request.gpu_model) > MAX_NAME_LENGTH:
        errors["gpu_model"] = [f"Enter up to {MAX_NAME_LENGTH} characters."]
    if request.gpus is not None and request.gpus < 1:
        errors["gpus"] = ["Enter 1 or more GPUs, or leave it empty for whole appliances."]
    if problems := list(requirement_errors(request.rental)):
        errors["rental"] = problems
    return errors
