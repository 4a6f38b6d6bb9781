"""States of accounts, offers and contracts, and the transitions between them."""

from enum import StrEnum


class AccountState(StrEnum):
    """Whether a tenant is a provider, or a customer: it asks, the operator admits or suspends."""

    NONE = "none"
    REQUESTED = "requested"
    ACTIVE = "active"
    SUSPENDED = "suspended"


class Listing(StrEnum):
    """How the catalogue lists a provider's offers; `hidden` ones take no new contracts."""

    NORMAL = "normal"
    LAST = "last"
    HIDDEN = "hidden"


class OfferState(StrEnum):
    """Of an offer: only a published one is in the catalogue; withdrawn is final.

    A paused one takes no new contracts; those that exist go on.
    """

    DRAFT = "draft"
    PUBLISHED = "published"
    PAUSED = "paused"
    WITHDRAWN = "withdrawn"


class ContractState(StrEnum):
    """Of a contract: the last three are final.

    `proposed` waits for a side to accept; `noticed` ends at `Contract.ends_at`, and is used until
    then.
    """

    PROPOSED = "proposed"
    ACTIVE = "active"
    NOTICED = "noticed"
    ENDED = "ended"
    DECLINED = "declined"
    WITHDRAWN = "withdrawn"

    @property
    def is_final(self) -> bool:
        """Return whether the contract has ended, or never began."""
        return not CONTRACT_TRANSITIONS[self]


class VersionState(StrEnum):
    """Of a version of a contract's terms: accepted ones apply from their time until the next."""

    PROPOSED = "proposed"
    ACCEPTED = "accepted"
    DECLINED = "declined"
    WITHDRAWN = "withdrawn"


class Side(StrEnum):
    """A side of a contract."""

    PROVIDER = "provider"
    CUSTOMER = "customer"

    @property
    def other(self) -> "Side":
        """The side that must accept what this one proposes."""
        return Side.CUSTOMER if self is Side.PROVIDER else Side.PROVIDER


_O = OfferState
OFFER_TRANSITIONS: dict[OfferState, frozenset[OfferState]] = {
    _O.DRAFT: frozenset({_O.PUBLISHED, _O.WITHDRAWN}),
    _O.PUBLISHED: frozenset({_O.PAUSED, _O.WITHDRAWN}),
    _O.PAUSED: frozenset({_O.PUBLISHED, _O.WITHDRAWN}),
    _O.WITHDRAWN: frozenset(),
}

_C = ContractState
CONTRACT_TRANSITIONS: dict[ContractState, frozenset[ContractState]] = {
    _C.PROPOSED: frozenset({_C.ACTIVE, _C.DECLINED, _C.WITHDRAWN}),
    _C.ACTIVE: frozenset({_C.NOTICED, _C.ENDED}),
    _C.NOTICED: frozenset({_C.ENDED}),
    _C.ENDED: frozenset(),
    _C.DECLINED: frozenset(),
    _C.WITHDRAWN: frozenset(),
}
# States in which the customer's jobs may start.
USABLE = (ContractState.ACTIVE, ContractState.NOTICED)
