"""What callbacks share: the database, the store, the clock, and whose eyes to look through."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from core.clock import Clock
from core.db import SessionFactory
from dash_app.routes import Route
from dash_app.timerange import Controls
from tenants.scope import Scope
from timeseries.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Given once by the portal; `scope_provider` answers for the request at hand."""

    sessions: SessionFactory
    store: Store
    scope_provider: Callable[[], Scope]
    clock: Clock

    @contextmanager
    def reading(self) -> Iterator[tuple[Session, Scope]]:
        """Open a session that only reads, with the scope of the present request."""
        scope = self.scope_provider()
        with self.sessions() as session:
            yield session, scope


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One request for a page."""

    session: Session
    scope: Scope
    route: Route
    controls: Controls


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A tier's skeleton: panels stay, refreshes fill them.

    Attributes:
        crumbs: (label, href) of the tiers above, outermost first.
        has_range: whether the time range applies; a job is shown over its life.
    """

    title: str
    crumbs: tuple[tuple[str, str], ...]
    body: Any
    has_range: bool = True
