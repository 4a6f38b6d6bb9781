"""States of appliances: the connection state, and the effective status that users see.

The *state* follows from the time since the last heartbeat. The *effective status* also considers
what admins decided. The first of these that applies is the status:

    revoked, retired, fenced         the agent is refused
    lost, unreachable, stale         no recent heartbeat: nothing else is certain
    silent                           a host without an agent, whose samples don't arrive any more
    drained                          connected, accepts no new jobs
    quarantined                      connected, accepts no jobs until a probe starts
    enrolled, online                 connected
    reporting                        a host without an agent, whose samples arrive
"""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, and_, case, not_, or_

from tenants.models import Appliance, ApplianceState

# Samples and logs of an appliance whose clock is further off get wrong times.
SKEW_LIMIT_SECONDS: Final = 5.0
# Hysteresis: a clock at the limit must not make an event with each heartbeat.
SKEW_RIGHT_SECONDS: Final = 2.5

_S = ApplianceState
TRANSITIONS: Final[dict[ApplianceState, frozenset[ApplianceState]]] = {
    _S.ENROLLED: frozenset({_S.ONLINE, _S.STALE, _S.UNREACHABLE, _S.LOST}),
    _S.ONLINE: frozenset({_S.STALE, _S.UNREACHABLE, _S.LOST}),
    _S.STALE: frozenset({_S.ONLINE, _S.UNREACHABLE, _S.LOST}),
    _S.UNREACHABLE: frozenset({_S.ONLINE, _S.LOST}),
    _S.LOST: frozenset({_S.ONLINE}),
    _S.REPORTING: frozenset({_S.ONLINE, _S.SILENT, _S.LOST}),
    _S.SILENT: frozenset({_S.ONLINE, _S.REPORTING, _S.LOST}),
}
_BY_SILENCE: Final = (_S.ONLINE, _S.STALE, _S.UNREACHABLE, _S.LOST)
_NOT_CONNECTED: Final = (_S.LOST, _S.UNREACHABLE, _S.STALE, _S.SILENT)
WITHOUT_AGENT: Final = (_S.REPORTING, _S.SILENT)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The time without heartbeats after which an appliance is stale, unreachable and lost."""

    stale_after: timedelta
    unreachable_after: timedelta
    lost_after: timedelta


def check_transition(current: ApplianceState, target: ApplianceState) -> ApplianceState:
    """Return the target state; every change of a host's `Appliance.state` goes through here.

    The states of nodes are what their cluster reports, in any order.

    Raises:
        ValueError: `TRANSITIONS` has no such transition.
    """
    if target is not current and target not in TRANSITIONS[current]:
        raise ValueError(f"an appliance can't change from {current} to {target}")
    return target


def next_state(
    current: ApplianceState, silence: timedelta, thresholds: Thresholds
) -> ApplianceState:
    """Return the state after this time without heartbeats; only a heartbeat improves a state."""
    steps = (thresholds.stale_after, thresholds.unreachable_after, thresholds.lost_after)
    by_silence = _BY_SILENCE[sum(silence > step for step in steps)]
    if by_silence is _S.ONLINE or by_silence not in TRANSITIONS[current]:
        return current
    return by_silence


class EffectiveStatus(StrEnum):
    """The status that users see; the states have the same names as in `ApplianceState`."""

    ENROLLED = "enrolled"
    ONLINE = "online"
    STALE = "stale"
    UNREACHABLE = "unreachable"
    LOST = "lost"
    REPORTING = "reporting"
    SILENT = "silent"
    DRAINED = "drained"
    QUARANTINED = "quarantined"
    FENCED = "fenced"
    RETIRED = "retired"
    REVOKED = "revoked"

    @property
    def is_in_service(self) -> bool:
        """Return whether the appliance counts among its tenant's appliances."""
        return self not in {EffectiveStatus.RETIRED, EffectiveStatus.REVOKED}


# In lists, what needs attention comes first.
_BY_ATTENTION: Final = (
    EffectiveStatus.FENCED,
    EffectiveStatus.LOST,
    EffectiveStatus.UNREACHABLE,
    EffectiveStatus.SILENT,
    EffectiveStatus.STALE,
    EffectiveStatus.QUARANTINED,
    EffectiveStatus.ENROLLED,
    EffectiveStatus.DRAINED,
    EffectiveStatus.ONLINE,
    EffectiveStatus.REPORTING,
    EffectiveStatus.RETIRED,
    EffectiveStatus.REVOKED,
)


def effective_status_of(appliance: Appliance | Row[Any]) -> EffectiveStatus:
    """Return the effective status of an appliance, or of a row with its columns."""
    if appliance.revoked_at is not None:
        return EffectiveStatus.REVOKED
    if appliance.retired_at is not None:
        return EffectiveStatus.RETIRED
    if appliance.fenced_at is not None:
        return EffectiveStatus.FENCED
    if appliance.drained_at is not None and appliance.state not in _NOT_CONNECTED:
        return EffectiveStatus.DRAINED
    if appliance.quarantined_at is not None and appliance.state not in _NOT_CONNECTED:
        return EffectiveStatus.QUARANTINED
    return EffectiveStatus(appliance.state.value)


def in_service() -> ColumnElement[bool]:
    """Return the SQL condition of `EffectiveStatus.is_in_service`."""
    return and_(Appliance.revoked_at.is_(None), Appliance.retired_at.is_(None))


def has_no_connector() -> ColumnElement[bool]:
    """Return the SQL condition that an appliance is not a node of a cluster, which has no agent."""
    return Appliance.connector_id.is_(None)


def counted_gpus() -> ColumnElement[int]:
    """Return the number of an appliance's GPUs as an SQL expression that counts each once.

    The nodes of a cluster have its GPUs. Those of the connector's own host may be among them.
    """
    return case((Appliance.cluster_kind == "", Appliance.gpu_count), else_=0)


def has_effective_status(status: EffectiveStatus) -> ColumnElement[bool]:
    """Return the SQL condition that an appliance has this effective status."""
    if status is EffectiveStatus.REVOKED:
        return Appliance.revoked_at.is_not(None)
    if status is EffectiveStatus.RETIRED:
        return and_(Appliance.revoked_at.is_(None), Appliance.retired_at.is_not(None))
    if status is EffectiveStatus.FENCED:
        return and_(in_service(), Appliance.fenced_at.is_not(None))
    admitted = and_(in_service(), Appliance.fenced_at.is_(None))
    not_connected = Appliance.state.in_(_NOT_CONNECTED)
    if status is EffectiveStatus.DRAINED:
        return and_(admitted, Appliance.drained_at.is_not(None), not_(not_connected))
    undrained = Appliance.drained_at.is_(None)
    if status is EffectiveStatus.QUARANTINED:
        return and_(admitted, undrained, Appliance.quarantined_at.is_not(None), not_(not_connected))
    accepts_jobs = and_(undrained, Appliance.quarantined_at.is_(None))
    has_state = Appliance.state == ApplianceState(status.value)
    return and_(admitted, has_state, or_(accepts_jobs, not_connected))


def effective_status_rank() -> ColumnElement[int]:
    """Return an SQL expression to sort by: what needs attention first."""
    return case(
        *((has_effective_status(status), rank) for rank, status in enumerate(_BY_ATTENTION)),
        else_=len(_BY_ATTENTION),
    )


def is_skewed(skew_seconds: float | None) -> bool:
    """Return whether a clock is off so far that users are warned."""
    return skew_seconds is not None and abs(skew_seconds) > SKEW_LIMIT_SECONDS


def is_clock_right(skew_seconds: float | None) -> bool:
    """Return whether a clock is so close to the portal's that a warning ends."""
    return skew_seconds is None or abs(skew_seconds) <= SKEW_RIGHT_SECONDS
