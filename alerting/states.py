"""States of an alert (one series group of one rule) and the moves between them.

inactive -> pending -> firing -> resolved -> (inactive | pending | firing)
any      -> no_data -> pending | firing | resolved by the next value
"""

from enum import StrEnum


class Severity(StrEnum):
    """How bad; `critical` outranks `warning`."""

    WARNING = "warning"
    CRITICAL = "critical"


class AlertState(StrEnum):
    """Where an alert is."""

    INACTIVE = "inactive"
    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"
    NO_DATA = "no_data"


class Comparison(StrEnum):
    """How a value is held against a threshold."""

    ABOVE = ">"
    BELOW = "<"


class NoDataPolicy(StrEnum):
    """What it means when a series that had values has none in the window."""

    KEEP = "keep"
    RESOLVE = "resolve"
    ALERT = "alert"


class NotificationState(StrEnum):
    """Where a message of the outbox is; `failed` was given up after its last retry."""

    WAITING = "waiting"
    SENT = "sent"
    FAILED = "failed"


class ReceiverKind(StrEnum):
    """How a message leaves."""

    EMAIL = "email"
    WEBHOOK = "webhook"


_S = AlertState
TRANSITIONS: dict[AlertState, frozenset[AlertState]] = {
    _S.INACTIVE: frozenset({_S.PENDING, _S.FIRING, _S.NO_DATA}),
    _S.PENDING: frozenset({_S.INACTIVE, _S.FIRING, _S.NO_DATA}),
    _S.FIRING: frozenset({_S.RESOLVED, _S.NO_DATA}),
    _S.RESOLVED: frozenset({_S.INACTIVE, _S.PENDING, _S.FIRING, _S.NO_DATA}),
    _S.NO_DATA: frozenset({_S.PENDING, _S.FIRING, _S.RESOLVED}),
}
