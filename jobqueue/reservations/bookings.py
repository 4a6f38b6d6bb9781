"""Bookings: what reservations keep of rented appliances, and what others keep of the same ones.

Appliances are chosen when a reservation is saved, by the rules that place jobs on offers: those of
the tenant's contracts that meet what it asks, the cheapest first, if they are free in all of its
times of the next months.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.db import chunked
from core.errors import InvalidInputError
from jobqueue.holds.service import rental_hold
from jobqueue.placement.rental_choice import GRANT_FILTERS
from jobqueue.placement.rentals import RentalNeed, RentalView, price_text, rental_need
from jobqueue.placement.views import JobShape
from jobqueue.reservations.models import Booking, Reservation
from jobqueue.reservations.periods import Period, TakenTimes, periods_until
from jobqueue.reservations.views import OTHER_CUSTOMER, PROVIDER, active_bookings, read_grants
from tenants.models import Tenant
from tenants.models.rentals import Grant, OfferedAppliance

MAX_BOOKED = 100
_SHAPE = JobShape(gpus=1)
_FILTERS = ("offer_region", "offer_compliance", "offer_availability", "offer_reputation")
Columns = Mapping[str, Any]
# How often all may begin that have an appliance in common; comparing a thousand takes a second.
MAX_COMPARED = 5000


@dataclass(frozen=True, slots=True)
class Choice:
    """The appliances that a reservation books; or why there are not as many as it needs."""

    bookings: list[Booking]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class KeptTimes:
    """GPUs of an appliance that a reservation keeps; `gpus` is None for all of them."""

    holder: str
    gpus: int | None
    periods: Sequence[Period]


def providers_of(session: Session, tenant_id: str, *, now: datetime) -> set[str]:
    """Return the providers with which a tenant has contracts."""
    return {grant.provider_id for grant in read_grants(session, tenant_id, now=now).values()}


def choose(
    session: Session,
    reservation: Reservation,
    columns: Columns,
    periods: list[Period],
    *,
    now: datetime,
    until: datetime,
) -> Choice:
    """Return the best appliances for a reservation that is to be saved.

    Args:
        session: the session.
        reservation: a new or a stored one.
        columns: what it will have.
        periods: its times.
        now: the time.
        until: the end of the time in which overlaps are looked for.

    Raises:
        InvalidInputError: other reservations begin too often to be compared.
    """
    tenant_id = reservation.tenant_id
    hold = rental_hold(session, tenant_id)
    need = rental_need(columns["max_gpu_hour_price"], columns["stored_rental"] or {}, None)
    grants = read_grants(session, tenant_id, now=now)
    if hold or need is None or not grants:
        return Choice([], hold or "There is no contract about an offer. Rent one first.")
    problems = Counter[str]()
    usable: dict[str, RentalView] = {}
    for offer_id, grant in grants.items():
        if problem := _problem(grant, need, periods[0]):
            problems[f"{grant.title}: {problem}"] += 1
        else:
            usable[offer_id] = grant
    rows = _offered(session, usable, columns["gpu_model"])
    providers = {row.appliance_id: row.provider_id for row in rows}
    others = kept_on(session, reservation, providers, now=now, until=until)
    limited = {grant.contract_id for grant in usable.values() if grant.max_gpus}
    booked = _kept_under(session, reservation, limited, now=now, until=until)
    bookings: list[Booking] = []
    booked_gpus: defaultdict[str, int] = defaultdict(int)
    for row in rows:
        grant = usable[row.offer_id]
        gpus = columns["gpus"] or row.gpu_count
        if row.gpu_count < max(1, gpus):
            problem = f"has {row.gpu_count} GPUs, {gpus} requested"
        elif grant.max_gpus and booked_gpus[grant.contract_id] + gpus > grant.max_gpus:
            problem = f"its contract allows {grant.max_gpus} GPUs at once"
        else:
            together = booked_gpus[grant.contract_id] + gpus
            problem = _clash(
                periods, row.gpu_count, others.get(row.appliance_id, ()), gpus, "has it"
            ) or _clash(
                periods,
                grant.max_gpus,
                booked.get(grant.contract_id, ()),
                together,
                f"has too many of the {grant.max_gpus} GPUs that its contract allows at once",
            )
        if problem:
            problems[f"{grant.title}: {problem}"] += 1
            continue
        booked_gpus[grant.contract_id] += gpus
        bookings.append(_booking(reservation, columns, row, grant, gpus, now=now))
        if len(bookings) == columns["appliance_count"]:
            return Choice(bookings)
    counted = f"{len(bookings)} of {columns['appliance_count']} rented appliances can be reserved."
    reasons = "; ".join(f"{number} of {text}" for text, number in problems.most_common(3))
    return Choice([], f"{counted} {reasons}" if reasons else f"{counted} No other is on offer.")


def close_bookings(
    session: Session, reservation_id: str, *, replaced_by: Collection[Booking] = (), now: datetime
) -> None:
    """Give up what a reservation has booked; the contract's time of cancellation is charged.

    It is not where as much is booked anew for the same times under the same contract.
    """
    statement = (
        select(Booking, Grant.cancellation_hours)
        .outerjoin(Grant, Grant.contract_id == Booking.contract_id)
        .where(Booking.reservation_id == reservation_id, Booking.until.is_(None))
    )
    replacements = list(replaced_by)
    for booking, hours in session.execute(statement).all():
        booking.until = now
        replacement = next((other for other in replacements if _replaces(other, booking)), None)
        if replacement is not None:
            replacements.remove(replacement)
        elif hours:
            booking.charged_until = now + timedelta(hours=hours)


def close_contract(session: Session, contract_id: str, *, now: datetime) -> None:
    """Give up what is booked under a contract: it has ended, or its customer may use nothing."""
    session.execute(
        update(Booking)
        .where(Booking.contract_id == contract_id, Booking.until.is_(None))
        .values(until=now)
    )


def bookings_under(session: Session, contract_id: str) -> list[Booking]:
    """Return what is booked now under a contract, by GPU model."""
    statement = select(Booking).where(Booking.contract_id == contract_id, Booking.until.is_(None))
    return list(session.scalars(statement.order_by(Booking.gpu_model, Booking.id)))


def customers_of(session: Session, bookings: Collection[Booking]) -> dict[str, str]:
    """Return the names of the tenants that have booked, by id."""
    wanted = {booking.tenant_id for booking in bookings}
    statement = select(Tenant.id, Tenant.name).where(Tenant.id.in_(sorted(wanted)))
    return {row[0]: row[1] for row in session.execute(statement)}


def kept_on(
    session: Session,
    reservation: Reservation,
    providers: Mapping[str, str],
    *,
    now: datetime,
    until: datetime,
) -> dict[str, list[KeptTimes]]:
    """Return what other reservations keep, by appliance.

    Args:
        session: the session.
        reservation: the one that is to be saved, which does not count.
        providers: the tenants of the appliances.
        now: the time.
        until: periods that begin later don't count.

    Raises:
        InvalidInputError: they begin too often to be compared.
    """
    others = _others(session, reservation, providers)
    return _kept_times(others, providers.keys(), now=now, until=until)


def busy_periods(
    total: int, others: Sequence[KeptTimes], gpus: int | None
) -> Iterator[tuple[Period, str]]:
    """Yield when an appliance has too few GPUs left, with who has the last of them.

    Args:
        total: the GPUs of the appliance.
        others: what is kept of it.
        gpus: so many are needed; None for all.
    """
    total = max(1, total)
    left = total - (total if gpus is None else gpus)
    changes = sorted(
        (at, sign * (other.gpus or total), other.holder)
        for other in others
        for period in other.periods
        for at, sign in zip(period, (1, -1), strict=True)
    )
    reserved, since, holder = 0, None, ""
    for at, change, changed_by in changes:
        before, reserved = reserved, reserved + change
        if before <= left < reserved:
            since, holder = at, changed_by
        elif since is not None and reserved <= left < before:
            yield (since, at), holder


def _kept_under(
    session: Session,
    reservation: Reservation,
    contract_ids: Collection[str],
    *,
    now: datetime,
    until: datetime,
) -> dict[str, list[KeptTimes]]:
    """Return what other reservations have booked under contracts, by contract.

    Args:
        session: the session.
        reservation: the one that is to be saved, which does not count.
        contract_ids: the contracts.
        now: the time.
        until: periods that begin later don't count.

    Raises:
        InvalidInputError: they begin too often to be compared.
    """
    bookings = [
        booking
        for part in chunked(sorted(contract_ids))
        for booking in session.scalars(
            select(Booking).where(
                Booking.contract_id.in_(part),
                Booking.until.is_(None),
                Booking.reservation_id != reservation.id,
            )
        )
    ]
    others = ((booking, "another reservation", (booking.contract_id,)) for booking in bookings)
    return _kept_times(others, contract_ids, now=now, until=until)


def _replaces(new: Booking, old: Booking) -> bool:
    names = ("contract_id", "schedule", "time_zone")
    is_same = all(getattr(new, name) == getattr(old, name) for name in names)
    return is_same and new.gpus >= old.gpus and new.duration_seconds >= old.duration_seconds


def _clash(
    periods: list[Period], total: int, others: Sequence[KeptTimes], gpus: int, text: str
) -> str:
    """Return who leaves fewer GPUs of a total than are needed, and since when; "" for nobody."""
    clash = TakenTimes(busy_periods(total, others, gpus)).overlap(periods)
    return "" if clash is None else f"{clash[1]} {text} from {clash[0][0]:%Y-%m-%d %H:%M}"


def _problem(grant: RentalView, need: RentalNeed, first: Period) -> str:
    """Return why nothing is booked by a grant; "" if it may be."""
    if grant.highest_price > need.max_price:
        highest = price_text(need.max_price)
        return f"{price_text(grant.highest_price)} an hour is above the highest price {highest}"
    if grant.ends_at is not None and grant.ends_at < first[1]:
        return f"its contract ends at {grant.ends_at:%Y-%m-%d %H:%M} UTC"
    texts = (GRANT_FILTERS[name].problem(grant, need, _SHAPE) for name in _FILTERS)
    return next(filter(None, texts), "")


def _offered(
    session: Session, grants: Mapping[str, RentalView], gpu_model: str
) -> list[OfferedAppliance]:
    """Return the appliances of grants with GPUs of a model, the best first."""
    rows: list[OfferedAppliance] = []
    for part in chunked(sorted(grants)):
        statement = select(OfferedAppliance).where(OfferedAppliance.offer_id.in_(part))
        if gpu_model:
            statement = statement.where(
                OfferedAppliance.gpu_model.icontains(gpu_model, autoescape=True)
            )
        rows += session.scalars(statement)
    dearest = {ident: replace(grant, price=grant.highest_price) for ident, grant in grants.items()}
    return sorted(rows, key=lambda row: (dearest[row.offer_id].rank, row.appliance_id))


def _booking(
    reservation: Reservation,
    columns: Columns,
    row: OfferedAppliance,
    grant: RentalView,
    gpus: int,
    *,
    now: datetime,
) -> Booking:
    return Booking(
        reservation_id=reservation.id,
        tenant_id=reservation.tenant_id,
        project_id=columns["project_id"],
        provider_id=row.provider_id,
        contract_id=grant.contract_id,
        offer_name=grant.offer_name,
        appliance_id=row.appliance_id,
        gpus=gpus,
        gpu_model=row.gpu_model,
        schedule=columns["schedule"],
        time_zone=columns["time_zone"],
        duration_seconds=columns["duration_seconds"],
        since=now,
    )


def _kept_times(
    others: Iterable[tuple[Reservation | Booking, str, Sequence[str]]],
    wanted: Collection[str],
    *,
    now: datetime,
    until: datetime,
) -> dict[str, list[KeptTimes]]:
    """Return the times of reservations with their holders, by those ids of theirs that matter."""
    times: dict[str, list[KeptTimes]] = defaultdict(list)
    remaining = MAX_COMPARED
    for other, holder, idents in others:
        shared = set(wanted).intersection(idents)
        if not shared:
            continue
        periods = periods_until(other, until, now=now, max_count=remaining + 1)
        remaining -= len(periods)
        if remaining < 0:
            often = f"The reservations of these appliances begin more than {MAX_COMPARED:,} times"
            problem = f"{often}. Choose fewer times, each for longer."
            raise InvalidInputError(problem, errors={"schedule": [problem]})
        for ident in shared:
            times[ident].append(KeptTimes(holder, other.gpus, periods))
    return times


def _others(
    session: Session, reservation: Reservation, providers: Mapping[str, str]
) -> Iterator[tuple[Reservation | Booking, str, Sequence[str]]]:
    """Yield other reservations and bookings, with their holder and appliances."""
    tenant_id, owners = reservation.tenant_id, set(providers.values())
    for part in chunked(sorted(owners)):
        of_owners = select(Reservation).where(
            Reservation.tenant_id.in_(part), Reservation.id != reservation.id
        )
        for other in session.scalars(of_owners):
            is_own = other.tenant_id == tenant_id
            yield other, repr(other.name) if is_own else PROVIDER, other.appliance_ids
    for booking in active_bookings(session, owners):
        if booking.reservation_id != reservation.id:
            is_own = booking.tenant_id == tenant_id
            holder = "another reservation" if is_own else OTHER_CUSTOMER
            yield booking, holder, (booking.appliance_id,)
