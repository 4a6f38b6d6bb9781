"""What modules dispatch, on its way to the writers and to the agent."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from plugins.collectd.types_db import Types
from plugins.collectd.values import Identity, Number

Meta = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchedValues:
    """The numbers of one instant; times in seconds, 0 where the module gave none."""

    identity: Identity
    values: tuple[Number, ...]
    time: float
    interval: float
    meta: Meta = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchedNotification:
    """A message about a series, at a time in seconds or at 0 where the module gave none."""

    identity: Identity
    severity: int
    message: str
    time: float
    meta: Meta = field(default_factory=dict)


Dispatched = DispatchedValues | DispatchedNotification


class Receiver(Protocol):
    """Who takes what modules dispatch."""

    hostname: str
    types: Types

    def take_values(self, values: DispatchedValues) -> None:
        """Take values for the writers and for the agent."""

    def write_values(self, values: DispatchedValues, destination: str | None) -> None:
        """Hand values to one writer, or to all.

        Raises:
            RuntimeError: there is no such writer.
        """

    def take_notification(self, notification: DispatchedNotification) -> None:
        """Tell a notification to whoever registered for it."""
