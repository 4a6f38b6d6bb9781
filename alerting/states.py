"""States of an alert (one series group of one rule) and their transitions.

inactive -> pending -> firing -> resolved -> (inactive | pending | firing)
any      -> no_data -> pending | firing | resolved with the next value
"""

import operator
from collections.abc import Callable
from enum import StrEnum

from timeseries.store import Aggregate

FORECAST = "forecast"
"""The function of a rule that continues the trend of the window; no aggregate of the store."""
FUNCTIONS = (*(aggregate.value for aggregate in Aggregate), FORECAST)
ACCUMULATING = frozenset({Aggregate.SUM, Aggregate.COUNT, Aggregate.INCREASE, Aggregate.RATE})
"""The functions whose value falls while no samples arrive, because the window loses its oldest."""


NOTICE = "notice"
"""The `kind` of a notification's payload that has text and a link instead of an alert."""


class Operator(StrEnum):
    """Arithmetic of two fields."""

    PLUS = "+"
    MINUS = "-"
    TIMES = "*"
    DIVIDED_BY = "/"


class Severity(StrEnum):
    """Severity of an alert, the least first."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """Higher than those of the severities that it outranks."""
        return _SEVERITY_RANKS[self]


_SEVERITY_RANKS = {severity: rank for rank, severity in enumerate(Severity)}


class AlertState(StrEnum):
    """State of an alert."""

    INACTIVE = "inactive"
    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"
    NO_DATA = "no_data"


class Comparison(StrEnum):
    """Which values breach a threshold."""

    ABOVE = ">", operator.gt
    BELOW = "<", operator.lt
    AT_LEAST = ">=", operator.ge
    AT_MOST = "<=", operator.le
    EQUAL = "==", operator.eq
    NOT_EQUAL = "!=", operator.ne

    is_breached: Callable[[float, float], bool]
    """Whether a value, the first argument, breaches a threshold, the second one."""

    def __new__(
        cls, sign: str, compare: Callable[[float, float], bool] = operator.gt
    ) -> "Comparison":
        """Create a member; a call with a sign alone looks one up."""
        member = str.__new__(cls, sign)
        member._value_ = sign
        member.is_breached = compare
        return member

    @property
    def is_upper(self) -> bool:
        """Return whether a higher value is a worse one."""
        return self in {Comparison.ABOVE, Comparison.AT_LEAST}

    @property
    def has_side(self) -> bool:
        """Return whether all values on one side of the threshold breach it."""
        return self not in {Comparison.EQUAL, Comparison.NOT_EQUAL}


class NoDataPolicy(StrEnum):
    """The action when a series that had values has none in the window."""

    KEEP = "keep"
    RESOLVE = "resolve"
    ALERT = "alert"


class NotificationState(StrEnum):
    """State of a notification.

    `failed` means that its retries are exhausted, `silenced` that it is held until a silence ends,
    and `suppressed` that it did not apply any more when the silence ended.
    """

    WAITING = "waiting"
    SENT = "sent"
    FAILED = "failed"
    SILENCED = "silenced"
    SUPPRESSED = "suppressed"


class NotificationPurpose(StrEnum):
    """The purpose of a notification.

    `change` is one of an alert's state, `repeat` one that its receiver had before, `action` the
    call of a webhook that a rule has as an action, `acknowledgement` says that a user works on the
    alert, `notice` is not about an alert, and `event` is for a webhook of events.
    """

    CHANGE = "change"
    REPEAT = "repeat"
    ACTION = "action"
    ACKNOWLEDGEMENT = "acknowledgement"
    NOTICE = "notice"
    EVENT = "event"


class ReceiverKind(StrEnum):
    """Channel of a notification."""

    EMAIL = "email"
    WEBHOOK = "webhook"
    CHAT = "chat"
    ALERTMANAGER = "alertmanager"
    PAGERDUTY = "pagerduty"
    OPSGENIE = "opsgenie"
    EVENTS = "events"


class EventTopic(StrEnum):
    """What the events of a webhook are about."""

    JOB = "job"
    APPLIANCE = "appliance"
    ALERT = "alert"
    IMAGE = "image"
    BILLING = "billing"


class Region(StrEnum):
    """The region of an account of a paging service."""

    US = "us"
    EU = "eu"


PAGING_URLS = {
    (ReceiverKind.PAGERDUTY, Region.US): "https://events.pagerduty.com",
    (ReceiverKind.PAGERDUTY, Region.EU): "https://events.eu.pagerduty.com",
    (ReceiverKind.OPSGENIE, Region.US): "https://api.opsgenie.com",
    (ReceiverKind.OPSGENIE, Region.EU): "https://api.eu.opsgenie.com",
}
PAGING_KINDS = frozenset(kind for kind, _ in PAGING_URLS)


class ActionKind(StrEnum):
    """An action of a rule when one of its alerts fires."""

    STOP_JOBS = "stop_jobs"
    DRAIN = "drain"
    LABEL = "label"
    WEBHOOK = "webhook"


class ActionState(StrEnum):
    """State of an action of an alert.

    `dry_run` means that it would have been done, `over_budget` that its rule had done so many
    within an hour, and `skipped` that the alert had resolved or that there was nothing to do.
    """

    WAITING = "waiting"
    DONE = "done"
    DRY_RUN = "dry_run"
    OVER_BUDGET = "over_budget"
    SKIPPED = "skipped"
    FAILED = "failed"


_S = AlertState
TRANSITIONS: dict[AlertState, frozenset[AlertState]] = {
    _S.INACTIVE: frozenset({_S.PENDING, _S.FIRING, _S.NO_DATA}),
    _S.PENDING: frozenset({_S.INACTIVE, _S.FIRING, _S.NO_DATA}),
    _S.FIRING: frozenset({_S.RESOLVED, _S.NO_DATA}),
    _S.RESOLVED: frozenset({_S.INACTIVE, _S.PENDING, _S.FIRING, _S.NO_DATA}),
    _S.NO_DATA: frozenset({_S.PENDING, _S.FIRING, _S.RESOLVED}),
}
