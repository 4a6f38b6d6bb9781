"""Changes that others wait for, such as an agent for its orders: told when they are committed.

A service notes what it changes; after the commit, the bus of the process tells its listeners, and
the broker those of other processes. A change that nobody is told of, because the broker was away,
is found a moment later by those who poll.
"""

from collections import defaultdict
from collections.abc import Callable, Collection
from enum import StrEnum
from threading import Lock

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction

Listener = Callable[[Collection[str]], None]
"""Is told the IDs of what changed, by any thread; must return at once and never raise."""

# Stands for all IDs of a topic.
ANY = ""
BUS = "change_bus"
_NOTED = "noted_changes"


class Topic(StrEnum):
    """What changes, by which IDs it is told; `ANY` for all that there are.

    `DESIRED`: desired states, by appliance. `JOB`: states and logs, by job. `REGISTRY`: who may
    authenticate, always `ANY`. `PLACEMENT`: what may let a job be placed, always `ANY`: one was
    submitted, or one ended.
    """

    DESIRED = "desired"
    JOB = "job"
    REGISTRY = "registry"
    PLACEMENT = "placement"


class ChangeBus:
    """Tells the listeners of this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._listeners: defaultdict[Topic, list[Listener]] = defaultdict(list)
        self._is_complete = False
        # Passes the changes of this process on to others; a broker sets it.
        self.pass_on: Callable[[Topic, Collection[str]], None] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the changes of all processes arrive here, so that polling may be rare."""
        return self._is_complete

    def set_complete(self, is_complete: bool) -> None:  # noqa: FBT001 - a setter
        """Set whether they do; listeners check everything once, as changes may have been missed."""
        with self._lock:
            is_same = self._is_complete == is_complete
            self._is_complete = is_complete
        if not is_same:
            self.deliver_all()

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

    def deliver_all(self) -> None:
        """Let the listeners of this process check everything."""
        for topic in Topic:
            self.deliver(topic, [ANY])


def note_change(session: Session, topic: Topic, *idents: str) -> None:
    """Tell of changes when the transaction of the session is committed."""
    session.info.setdefault(_NOTED, defaultdict(set))[topic].update(idents)


@event.listens_for(Session, "after_commit")
def _tell(session: Session) -> None:
    # Released savepoints come here, too: others see nothing of them yet.
    if session.in_nested_transaction():
        return
    noted = session.info.pop(_NOTED, None)
    bus: ChangeBus | None = session.info.get(BUS)
    if noted and bus is not None:
        for topic, idents in noted.items():
            if idents:
                bus.publish(topic, idents)


@event.listens_for(Session, "after_transaction_end")
def _forget(session: Session, transaction: SessionTransaction) -> None:
    # What a savepoint noted stays, even if it was rolled back: a change too many does no harm.
    if transaction.parent is None:
        session.info.pop(_NOTED, None)
