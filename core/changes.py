"""Changes that others wait for, such as an agent for its orders: told when they are committed.

A service notes what it changes; after the commit, the bus of the process tells its listeners, and
the broker those of other processes. A change that nobody is told of, because the broker was away,
is found a moment later by those who poll.
"""

from collections import defaultdict
from collections.abc import Callable, Collection
from enum import StrEnum
from threading import Lock
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session

Listener = Callable[[Collection[str]], None]
"""Is told the IDs of what changed, by any thread; must return at once and never raise."""

BUS = "change_bus"
_NOTED = "noted_changes"


class Topic(StrEnum):
    """What changes, by which IDs it is told.

    `DESIRED`: desired states, by appliance. `JOB`: states and logs, by job. `REGISTRY`: who may
    authenticate, by appliance or tenant; empty for any.
    """

    DESIRED = "desired"
    JOB = "job"
    REGISTRY = "registry"


class ChangeBus:
    """Tells the listeners of this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._listeners: defaultdict[Topic, list[Listener]] = defaultdict(list)
        # Passes the changes of this process on to others; a broker sets it.
        self.pass_on: Callable[[Topic, Collection[str]], None] | None = None
        # Whether the changes of all processes arrive here, so that polling may be rare.
        self.is_complete = False

    def listen(self, topic: Topic, listener: Listener) -> None:
        """Tell a listener of all changes of a topic, as long as the process runs."""
        with self._lock:
            self._listeners[topic].append(listener)

    def publish(self, topic: Topic, idents: Collection[str]) -> None:
        """Tell of changes that this process has committed."""
        self.deliver(topic, idents)
        if self.pass_on is not None:
            self.pass_on(topic, idents)

    def deliver(self, topic: Topic, idents: Collection[str]) -> None:
        """Tell the listeners of this process."""
        with self._lock:
            listeners = tuple(self._listeners[topic])
        for listener in listeners:
            listener(idents)


def note_change(session: Session, topic: Topic, ident: str) -> None:
    """Tell of a change when the transaction of the session is committed."""
    session.info.setdefault(_NOTED, defaultdict(set))[topic].add(ident)


def _tell(session: Session) -> None:
    noted = session.info.pop(_NOTED, None)
    bus: ChangeBus | None = session.info.get(BUS)
    if noted and bus is not None:
        for topic, idents in noted.items():
            bus.publish(topic, idents)


def _forget(session: Session, _previous: Any) -> None:  # noqa: ANN401 - a transaction
    if session.get_transaction() is None:
        session.info.pop(_NOTED, None)


event.listen(Session, "after_commit", _tell)
event.listen(Session, "after_soft_rollback", _forget)
