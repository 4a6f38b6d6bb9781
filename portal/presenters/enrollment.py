"""The progress of an enrollment: from a token to appliances whose samples the portal has.

A host is *connecting* until the portal has its first samples; then it is *online*. It is *silent*
if it connects for longer than that should take, or was online and has lost its connection.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from core.clock import to_ns
from portal.context import current_scope, database, now, portal
from tenants.enrollment import enrollments_with, get_enrollment_token
from tenants.fleet.states import EffectiveStatus, effective_status_of
from tenants.models import Appliance, EnrollmentToken
from timeseries.store import APPLIANCE_TAG, LatestQuery, StoreUnavailableError

# The agent starts within seconds of its enrollment, and sends every five.
SILENT_AFTER = timedelta(seconds=60)
# Samples have the time of the host.
CLOCK_TOLERANCE = timedelta(minutes=10)
MAX_HOSTS = 100
NOT_CONNECTED = frozenset(
    {EffectiveStatus.STALE, EffectiveStatus.UNREACHABLE, EffectiveStatus.LOST}
)


class HostState(StrEnum):
    """How far a host is that enrolled with a token."""

    CONNECTING = "connecting"
    SILENT = "silent"
    ONLINE = "online"


class EnrollmentState(StrEnum):
    """How far an enrollment is; `closed` is a token that nobody has used, and nobody can use."""

    WAITING = "waiting"
    COMPLETE = "complete"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class EnrolledHost:
    """An appliance that enrolled with a token."""

    id: str
    name: str
    gpu_count: int
    enrolled_at: datetime
    state: HostState


@dataclass(frozen=True, slots=True)
class EnrollmentProgress:
    """The newest hosts of a token, and how many more it can enroll."""

    token: EnrollmentToken
    uses_left: int
    hosts: list[EnrolledHost]

    @property
    def state(self) -> EnrollmentState:
        """How far the enrollment is."""
        if self.uses_left or any(host.state is not HostState.ONLINE for host in self.hosts):
            return EnrollmentState.WAITING
        return EnrollmentState.COMPLETE if self.hosts else EnrollmentState.CLOSED


def enrollment_progress(enrollment_token_id: str) -> EnrollmentProgress:
    """Return the progress of a token of the current user's tenant."""
    with database() as session:
        token = get_enrollment_token(session, current_scope(), enrollment_token_id)
        enrollments = enrollments_with(session, current_scope(), token.id, limit=MAX_HOSTS)
    senders = _senders(token, {appliance.id for appliance, _ in enrollments})
    hosts = [
        EnrolledHost(
            id=appliance.id,
            name=appliance.name,
            gpu_count=appliance.gpu_count,
            enrolled_at=at,
            state=_state(appliance, at, has_sent=appliance.id in senders),
        )
        for appliance, at in enrollments
    ]
    is_usable = token.revoked_at is None and token.expires_at > now()
    return EnrollmentProgress(token, token.uses_left if is_usable else 0, hosts)


def _senders(token: EnrollmentToken, appliance_ids: Collection[str]) -> frozenset[str]:
    """Return which appliances have sent samples since the token exists.

    If the store does not answer, these are all: their heartbeats decide.
    """
    if not appliance_ids:
        return frozenset()
    query = LatestQuery(
        measurement="agent",
        fields=("buffered_points",),
        since_ns=to_ns(token.created_at - CLOCK_TOLERANCE),
        tenants=(token.tenant_id,),
        filters={APPLIANCE_TAG: tuple(sorted(appliance_ids))},
    )
    try:
        return frozenset(latest.tags[APPLIANCE_TAG] for latest in portal().store.latest(query))
    except StoreUnavailableError:
        return frozenset(appliance_ids)


def _state(appliance: Appliance, enrolled_at: datetime, *, has_sent: bool) -> HostState:
    is_connected = appliance.last_seen_at is not None and appliance.last_seen_at > enrolled_at
    if is_connected and has_sent and effective_status_of(appliance) not in NOT_CONNECTED:
        return HostState.ONLINE
    is_late = now() - enrolled_at > SILENT_AFTER
    return HostState.SILENT if is_late else HostState.CONNECTING
