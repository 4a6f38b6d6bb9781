"""The order of rented appliances: by price and reputation, then locality.

The price is divided by a factor of the provider's reputation, which the operator's policy sets.

Own appliances come before all of them. Of those that are alike, the ones with more of the job's
data come first, then the policy of the tenant decides.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from jobqueue.placement.ledger import Ledger, Mask
from jobqueue.placement.rentals import RentalView, price_text


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
