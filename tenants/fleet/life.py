"""The life of an appliance in one word: what its silence, its owner and its fence make of it.

Several things may be true of an appliance at once: one that is drained may be lost as well. The
word is the one that decides what it can do now, by this rule, the first that holds:

    revoked, retired, fenced         its agent is not let in, whatever it does
    lost, unreachable, stale         it is not heard, so nothing else is known for certain
    drained                          it is there, and takes no new jobs
    enrolled, online                 it is there

Lists, pages, dashboards and REST all show this word; that an appliance is drained besides is told
beside it.
"""

from enum import StrEnum
from typing import Final

from sqlalchemy import ColumnElement, and_, case, not_, or_

from tenants.models import Appliance, ApplianceState

# A clock that is further off than this is told: its samples and logs lie where nobody looks.
SKEW_LIMIT_SECONDS: Final = 5.0
# It is told to be right again only from here on, or one at the limit would be told all the time.
SKEW_RIGHT_SECONDS: Final = 2.5


class LifeState(StrEnum):
    """The word; members that are also states of silence have the same text."""

    ENROLLED = "enrolled"
    ONLINE = "online"
    STALE = "stale"
    UNREACHABLE = "unreachable"
    LOST = "lost"
    DRAINED = "drained"
    FENCED = "fenced"
    RETIRED = "retired"
    REVOKED = "revoked"

    @property
    def is_in_service(self) -> bool:
        """Whether it counts among its tenant's appliances."""
        return self not in OUT_OF_SERVICE


OUT_OF_SERVICE: Final = frozenset({LifeState.RETIRED, LifeState.REVOKED})
_SILENT: Final = (ApplianceState.LOST, ApplianceState.UNREACHABLE, ApplianceState.STALE)
# What needs somebody's eye comes first.
_BY_NEED: Final = (
    LifeState.FENCED, LifeState.LOST, LifeState.UNREACHABLE, LifeState.STALE, LifeState.ENROLLED,
    LifeState.DRAINED, LifeState.ONLINE, LifeState.RETIRED, LifeState.REVOKED,
)  # fmt: skip


def life_of(appliance: Appliance) -> LifeState:
    """Return the word for an appliance."""
    if appliance.revoked_at is not None:
        return LifeState.REVOKED
    if appliance.retired_at is not None:
        return LifeState.RETIRED
    if appliance.fenced_at is not None:
        return LifeState.FENCED
    if appliance.drained_at is not None and appliance.state not in _SILENT:
        return LifeState.DRAINED
    return LifeState(appliance.state.value)


def is_skewed(skew_seconds: float | None) -> bool:
    """Whether a clock is so far from the portal's that somebody should look at it."""
    return skew_seconds is not None and abs(skew_seconds) > SKEW_LIMIT_SECONDS


def is_clock_right(skew_seconds: float | None) -> bool:
    """Whether a clock is so near to the portal's that it may be told to be right again."""
    return skew_seconds is None or abs(skew_seconds) <= SKEW_RIGHT_SECONDS


def in_service() -> ColumnElement[bool]:
    """Return the condition of `LifeState.is_in_service`."""
    return and_(Appliance.revoked_at.is_(None), Appliance.retired_at.is_(None))


def life_is(life: LifeState) -> ColumnElement[bool]:
    """Return the condition that the word for an appliance is this one."""
    if life is LifeState.REVOKED:
        return Appliance.revoked_at.is_not(None)
    if life is LifeState.RETIRED:
        return and_(Appliance.revoked_at.is_(None), Appliance.retired_at.is_not(None))
    if life is LifeState.FENCED:
        return and_(in_service(), Appliance.fenced_at.is_not(None))
    free = and_(in_service(), Appliance.fenced_at.is_(None))
    is_silent = Appliance.state.in_(_SILENT)
    if life is LifeState.DRAINED:
        return and_(free, Appliance.drained_at.is_not(None), not_(is_silent))
    state = ApplianceState(life.value)
    return and_(free, Appliance.state == state, or_(Appliance.drained_at.is_(None), is_silent))


def life_rank() -> ColumnElement[int]:
    """Return an expression to sort by: what needs somebody's eye first."""
    return case(*((life_is(life), rank) for rank, life in enumerate(_BY_NEED)), else_=len(_BY_NEED))
