"""Which rented appliances a job may go to, and which of them is the best.

Each filter asks something of the grant, which many appliances share. Own appliances come before all
rented ones. Of those, the price and the reputation decide, then locality: the price is divided by a
factor of the provider's reputation, which the operator's policy sets. Of those that are alike, the
ones with more of the job's data come first, then the policy of the tenant decides.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from core.quantities import format_duration
from jobqueue.executors.abilities import Need
from jobqueue.placement.ledger import Ledger, Mask
from jobqueue.placement.rentals import RentalNeed, RentalView, price_text
from jobqueue.placement.views import JobShape
from protocol.gpu_slices import WHOLE_GPU

Problem = Callable[[RentalView, RentalNeed, JobShape], str]
"""What is wrong with a grant for a job; "" if nothing is."""
# What would reach beyond the job's own container, on somebody else's appliance.
REFUSED: Mapping[Need, str] = {
    Need.MOUNTS: "mount no host paths",
    Need.HOST_NETWORK: "give no job their own network",
    Need.RDMA: "pass no RDMA devices",
    Need.GANG_NETWORK: "run no members of gangs",
    Need.GANG: "run no members of gangs",
    Need.MEMBERS: "run no members of gangs",
}


def not_rented(ledger: Ledger, shape: JobShape) -> Mask:
    """Reject them for jobs that stay on own appliances."""
    return ledger.is_rented if shape.rental is None else np.zeros(ledger.size, np.bool_)


def refusing(ledger: Ledger, shape: JobShape) -> Mask:
    """Reject them for jobs with what reaches beyond their container."""
    has_any = not REFUSED.keys().isdisjoint(shape.needs)
    return ledger.is_rented if has_any else np.zeros(ledger.size, np.bool_)


def refusing_fact(_ledger: Ledger, shape: JobShape, _place: int) -> str:
    """Return what rented appliances don't do for a job."""
    need = next(need for need in REFUSED if need in shape.needs)
    return f"rented appliances {REFUSED[need]}"


class GrantFilter:
    """What a filter rejects and why, asked once for each grant."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def rejects(self, ledger: Ledger, shape: JobShape) -> Mask:
        """Return the appliances of the grants with the problem."""
        need = shape.rental
        if need is None:
            return np.zeros(ledger.size, np.bool_)
        return ledger.of_grants([bool(self.problem(grant, need, shape)) for grant in ledger.grants])

    def fact(self, ledger: Ledger, shape: JobShape, place: int) -> str:
        """Return the problem of one appliance's grant."""
        grant = ledger.views[place].rental
        if grant is None or shape.rental is None:
            return ""
        return self.problem(grant, shape.rental, shape)


def _closed(grant: RentalView, _need: RentalNeed, _shape: JobShape) -> str:
    return "" if grant.is_open else "lets no jobs start now"


def _region(grant: RentalView, need: RentalNeed, _shape: JobShape) -> str:
    if not need.regions or grant.region.lower() in need.regions:
        return ""
    return f"is in {grant.region or 'an unknown region'}, {' or '.join(sorted(need.regions))} asked"


def _compliance(grant: RentalView, need: RentalNeed, _shape: JobShape) -> str:
    missing = need.facts - grant.facts
    return f"does not state {', '.join(sorted(missing))}" if missing else ""


def _availability(grant: RentalView, need: RentalNeed, _shape: JobShape) -> str:
    promised, wanted = grant.availability_percent, need.availability_percent
    if promised >= wanted:
        return ""
    promises = f"promises {promised:g} % availability" if promised else "promises no availability"
    return f"{promises}, {wanted:g} % asked"


def _reputation(grant: RentalView, need: RentalNeed, _shape: JobShape) -> str:
    if grant.reputation >= need.reputation:
        return ""
    return f"its provider's reputation is {grant.reputation:.2f}, {need.reputation:g} asked"


def _slices(grant: RentalView, _need: RentalNeed, shape: JobShape) -> str:
    if shape.slice is None or grant.allows_slices:
        return ""
    return f"rents out whole GPUs only, {shape.slice.need} requested"


def _size(grant: RentalView, _need: RentalNeed, shape: JobShape) -> str:
    gpus = shape.gpus * shape.gpu_milli / WHOLE_GPU
    if not grant.max_gpus or gpus <= grant.max_gpus:
        return ""
    return f"its contract allows {grant.max_gpus} GPUs at once, {gpus:g} requested"


def _time(grant: RentalView, need: RentalNeed, _shape: JobShape) -> str:
    limit = need.time_limit
    if grant.ends_at and grant.ends_in is not None and limit is not None and limit > grant.ends_in:
        return f"its contract ends at {grant.ends_at:%Y-%m-%d %H:%M} UTC, before the job's limit"
    if not grant.max_seconds:
        return ""
    longest = f"its jobs run for {format_duration(grant.max_seconds)} at most"
    if limit is None:
        return f"{longest}, and the job has no time limit; set one"
    seconds = limit.total_seconds()
    return f"{longest}, {format_duration(seconds)} asked" if seconds > grant.max_seconds else ""


def _price(grant: RentalView, need: RentalNeed, _shape: JobShape) -> str:
    if grant.price <= need.max_price:
        return ""
    highest = price_text(need.max_price)
    return f"{price_text(grant.price)} an hour is above the highest price {highest}"


# In their order, by code.
GRANT_FILTERS: Mapping[str, GrantFilter] = {
    "offer_closed": GrantFilter(_closed),
    "offer_region": GrantFilter(_region),
    "offer_compliance": GrantFilter(_compliance),
    "offer_availability": GrantFilter(_availability),
    "offer_reputation": GrantFilter(_reputation),
    "offer_slices": GrantFilter(_slices),
    "offer_max_gpus": GrantFilter(_size),
    "offer_time": GrantFilter(_time),
    "price_too_high": GrantFilter(_price),
}


def full_contracts(ledger: Ledger, shape: JobShape) -> Mask:
    """Reject those whose contract allows no more GPUs at once, whoever has room."""
    milli = shape.gpus * shape.gpu_milli
    return ledger.of_grants(
        [
            bool(grant.max_gpus)
            and ledger.contract_milli[grant.contract_id] + milli > grant.max_gpus * WHOLE_GPU
            for grant in ledger.grants
        ]
    )


def full_fact(ledger: Ledger, shape: JobShape, place: int) -> str:
    """Return how many GPUs of a contract are in use."""
    grant = ledger.views[place].rental
    if grant is None:
        return ""
    used = ledger.contract_milli[grant.contract_id] / WHOLE_GPU
    gpus = shape.gpus * shape.gpu_milli / WHOLE_GPU
    return f"{used:g} of the {grant.max_gpus} GPUs of its contract in use, {gpus:g} requested"


def offer_groups(ledger: Ledger, free: Mask) -> Iterator[Mask]:
    """Yield the rented ones of some appliances in groups that are alike, the best group first."""
    for rank in np.unique(ledger.offer_ranks[free & ledger.is_rented]):
        yield free & (ledger.offer_ranks == rank)


def rental_reason(ledger: Ledger, place: int, free: Mask, *, has_own: bool) -> str:
    """Return why a job goes to a rented appliance, as sentences.

    Args:
        ledger: the appliances.
        place: the one that it goes to.
        free: those that can run it now.
        has_own: whether own ones could run it, but are busy.
    """
    own = "No own appliance is free." if has_own else "No own appliance can run the job now."
    rental = ledger.views[place].rental
    if rental is None:
        return ""
    numbers = np.unique(ledger.grant_of[free & ledger.is_rented])
    offers = [ledger.grants[number] for number in numbers.tolist()]
    price = f"{price_text(rental.price)} an hour for each GPU"
    if len(offers) < 2:  # noqa: PLR2004 - there is no choice
        return f"{own} {rental.offer_name} can run it for {price}."
    return f"{own} Of {len(offers)} offers with room, {rental.offer_name} {_merit(rental, offers)}."


def _merit(rental: RentalView, offers: Sequence[RentalView]) -> str:
    """Return what distinguishes an offer from others."""
    price = f"{price_text(rental.price)} an hour for each GPU"
    if rental.rank > min(grant.rank for grant in offers):
        return f"costs {price}; better ones are kept for earlier jobs, or the job failed there"
    facts = [f"has the lowest price, {price}"]
    if any(grant.price < rental.price for grant in offers):
        facts = [f"costs {price}, which is the lowest price with reputation counted"]
    same = [grant for grant in offers if grant.rank[0] == rental.rank[0]]
    if any(grant.reputation < rental.reputation for grant in same):
        facts.append("the best reputation of those")
    same = [grant for grant in same if grant.reputation == rental.reputation]
    if rental.is_local and not all(grant.is_local for grant in same):
        facts.append("is in a region of own appliances")
    return " and ".join(facts)
