"""States of a provider's standing and of appeals, and the kinds of events."""

from enum import StrEnum


class StandingState(StrEnum):
    """How a provider stands.

    `noticed` has had notice of breaches, and time to mend; `probation` is back with limits.
    """

    GOOD = "good"
    NOTICED = "noticed"
    SUSPENDED = "suspended"
    PROBATION = "probation"


_S = StandingState
STANDING_TRANSITIONS: dict[StandingState, frozenset[StandingState]] = {
    _S.GOOD: frozenset({_S.NOTICED, _S.SUSPENDED}),
    _S.NOTICED: frozenset({_S.GOOD, _S.SUSPENDED, _S.PROBATION}),
    _S.SUSPENDED: frozenset({_S.GOOD, _S.PROBATION}),
    _S.PROBATION: frozenset({_S.GOOD, _S.NOTICED, _S.SUSPENDED}),
}


class AppealState(StrEnum):
    """Of an appeal: `closed` if the suspension ended before it was decided."""

    OPEN = "open"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    CLOSED = "closed"


class EventKind(StrEnum):
    """What changed."""

    NOTICED = "noticed"
    MENDED = "mended"
    SUSPENDED = "suspended"
    APPEALED = "appealed"
    APPEAL_ACCEPTED = "appeal_accepted"
    APPEAL_REJECTED = "appeal_rejected"
    PROBATION = "probation"
    REINSTATED = "reinstated"
    LISTING = "listing"
    PLACEMENT = "placement"
    FEE = "fee"
