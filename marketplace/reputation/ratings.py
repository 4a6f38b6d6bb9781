"""How much the opinions and jobs of customers count: bounded, so that rings gain little.

A *tie* is a reason to believe that two tenants act as one: the domain of their billing email
addresses, the address that they signed up from, or that they praise each other in a *ring*. Tied
customers count as one, and customers that are tied to the provider hardly at all. What remains is
bounded three times: by the weight of a customer, which saturates with what it ran there and paid
for; by the weight of all that are tied to the provider; and by the weight of the dimension.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import fsum

from marketplace.cases import Case, Dimension
from marketplace.reputation.beta import decay

MIN_STARS, MAX_STARS = 1, 5
PRAISE_STARS = 4
"""From here on a rating is praise, which a ring is made of."""
MAX_RING_STEPS = 3
"""A rates B, B rates C, C rates D, D rates A: a ring of four is found."""
# Domains where anybody may have an address are no tie.
PUBLIC_DOMAINS = frozenset(
    (
        *("aol.com", "fastmail.com", "gmail.com", "gmx.com", "gmx.de", "gmx.net"),
        *("googlemail.com", "hotmail.com", "icloud.com", "live.com", "mac.com", "mail.com"),
        *("mail.ru", "me.com", "msn.com", "outlook.com", "pm.me", "posteo.de", "proton.me"),
        *("protonmail.com", "qq.com", "163.com", "126.com", "t-online.de", "tutanota.com"),
        *("web.de", "yahoo.co.jp", "yahoo.com", "yandex.ru", "ymail.com", "zoho.com"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How far the cases of a customer may count.

    Attributes:
        weight: what all cases of a customer, and of those tied to it, count at most.
        half_amount: of what it did there (GPU-hours or attempts) gives half of that.
        tied_weight: what those count at most, together, that are tied to the provider.
    """

    weight: float
    half_amount: float
    tied_weight: float


RATING_LIMIT = Limit(weight=5.0, half_amount=20.0, tied_weight=0.5)
"""By GPU-hours that the customer paid for."""
JOB_LIMIT = Limit(weight=50.0, half_amount=50.0, tied_weight=0.5)
"""By attempts: the first count 1, and never more than 50 together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a customer did at a provider: a rating or an attempt.

    Attributes:
        customer_id: the tenant.
        amount: how much it rests on, in the unit of the limit.
        at: when.
        good: how far it speaks for the provider, 0 to 1.
    """

    customer_id: str
    amount: float
    at: datetime
    good: float = 1.0

    @property
    def is_complaint(self) -> bool:
        """Return whether it speaks against the provider."""
        return self.good < 0.5  # noqa: PLR2004 - a half


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenRating:
    """A rating of a provider by a customer that ran there.

    Attributes:
        id: for the list of evidence.
        customer_id: the tenant.
        stars: 1 to 5.
        gpu_hours: that the customer paid for under the contract in the month that it rates.
        at: when it was given or changed last.
        text: the comment.
    """

    id: str
    customer_id: str
    stars: int
    gpu_hours: float
    at: datetime
    text: str = ""

    @property
    def good(self) -> float:
        """How far it speaks for the provider: 0 for 1 star, 1 for 5."""
        return (self.stars - MIN_STARS) / (MAX_STARS - MIN_STARS)


def rating_cases(
    ratings: Sequence[GivenRating],
    groups: Mapping[str, str],
    *,
    provider_id: str,
    now: datetime,
    half_life: timedelta,
) -> list[Case]:
    """Return the cases that ratings of a provider make, weighed by who gave them."""
    entries = [
        Entry(
            customer_id=rating.customer_id,
            amount=rating.gpu_hours,
            at=rating.at,
            good=rating.good,
        )
        for rating in ratings
    ]
    weights = bounded_weights(
        entries, groups, RATING_LIMIT, provider_id=provider_id, now=now, half_life=half_life
    )
    return [
        Case(
            dimension=Dimension.SATISFACTION,
            good=rating.good,
            weight=weight,
            at=rating.at,
            kind=f"rated_{rating.stars}",
            subject=rating.id,
            text=rating.text,
        )
        for rating, weight in zip(ratings, weights, strict=True)
    ]


def bounded_weights(
    entries: Sequence[Entry],
    groups: Mapping[str, str],
    limit: Limit,
    *,
    provider_id: str,
    now: datetime,
    half_life: timedelta,
) -> list[float]:
    """Return the weight of each entry, before it decays.

    After decay, the entries of a group together weigh `limit.weight * a / (a + half_amount)`,
    with a the decayed sum of their amounts: splitting an amount on more entries gains nothing. A
    tie to the provider takes no weight from complaints: it may have made the tie.

    Args:
        entries: of all customers of the provider.
        groups: from `tied_groups`; a tenant that it lacks is a group of its own.
        limit: of what a group counts.
        provider_id: the provider; its own group is bounded by `limit.tied_weight`.
        now: the current time.
        half_life: after which an entry counts half.
    """
    own = groups.get(provider_id, provider_id)

    def group_of(entry: Entry) -> str:
        return groups.get(entry.customer_id, entry.customer_id)

    amounts: dict[str, list[float]] = defaultdict(list)
    of_tied: dict[str, list[float]] = defaultdict(list)
    for entry in entries:
        decayed = entry.amount * decay(now - entry.at, half_life)
        amounts[group_of(entry)].append(decayed)
        if group_of(entry) == own:
            of_tied[entry.customer_id].append(decayed)

    totals = {group: fsum(parts) + limit.half_amount for group, parts in amounts.items()}
    totals_of_tied = {name: fsum(parts) + limit.half_amount for name, parts in of_tied.items()}

    def factor(entry: Entry) -> float:
        group = group_of(entry)
        if group != own:
            return limit.weight / totals[group]
        if entry.is_complaint:
            return limit.weight / totals_of_tied[entry.customer_id]
        return limit.tied_weight / totals[own]

    return [entry.amount * factor(entry) for entry in entries]


def tied_groups(
    affiliations: Mapping[str, Collection[str]],
    *,
    provider_id: str,
    praises: Mapping[str, Collection[str]],
) -> dict[str, str]:
    """Return the group of each tenant as this provider's reputation sees it.

    Ties are not passed on: anybody may name the email domains of others, and whoever rents here
    and names those of the provider and of its best customers must not tie these to it. So those
    that share something with the provider are tied to it, and of the others, each is tied to those
    that share the one thing of it that most share.

    Args:
        affiliations: of the provider and its customers, such as email domains.
        provider_id: whose reputation it is; its ring joins its group.
        praises: whom each tenant rates highly.
    """
    own = set(affiliations.get(provider_id, ()))
    members = ring(provider_id, praises)
    counts = Counter(name for shared in affiliations.values() for name in set(shared))
    groups = {provider_id: provider_id}
    for tenant_id, shared in affiliations.items():
        main = max(shared, key=lambda name: (counts[name], name), default="")
        if tenant_id in members or own.intersection(shared):
            groups[tenant_id] = provider_id
        elif tenant_id != provider_id:
            groups[tenant_id] = f"={main}" if counts[main] > 1 else tenant_id
    return groups


def ring(provider_id: str, praises: Mapping[str, Collection[str]]) -> set[str]:
    """Return who is praised by a provider, or by those that it praises, in a few steps.

    Who of them praises the provider closes a ring; the praise of the others is not about it.
    """
    members: set[str] = set()
    border = {provider_id}
    for _ in range(MAX_RING_STEPS):
        border = {praised for name in border for praised in praises.get(name, ())}
        border -= members | {provider_id}
        members |= border
    return members


def email_affiliation(email: str) -> Iterable[str]:
    """Yield the affiliation of an email address: its domain, or the whole of a public one."""
    address = email.strip().lower()
    _, at, domain = address.rpartition("@")
    if at and domain:
        yield address if domain in PUBLIC_DOMAINS else domain
