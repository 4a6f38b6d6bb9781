"""What the tiers share: services from the portal, one request's view, and a tier's contract."""

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from core.clock import Clock
from core.db import SessionFactory
from dash_app.charts import Chart, with_earlier
from dash_app.routes import Route, parse_path
from dash_app.timerange import EARLIER, Controls, Span
from tenants.scope import Scope
from timeseries.store import Store

T = TypeVar("T")
MINUTE = timedelta(minutes=1)
# Viewers of the same page refresh it together.
REFRESH_TTL = timedelta(seconds=2)


@dataclass(slots=True)
class _Entry:
    """A result, or its computation under way."""

    made_at: datetime
    lock: threading.Lock = field(default_factory=threading.Lock)
    result: Any = None
    is_done: bool = False


class SharedCache:
    """Shares results between requests by key; concurrent callers wait for one computation."""

    def __init__(self, clock: Clock, *, ttl: timedelta) -> None:
        self._clock = clock
        self._ttl = ttl
        self._lock = threading.Lock()
        self._entries: dict[Hashable, _Entry] = {}

    def get(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the cached result, or compute and cache it."""
        with self._lock:
            now = self._clock()
            self._entries = {
                known: entry
                for known, entry in self._entries.items()
                if timedelta(0) <= now - entry.made_at < self._ttl
            }
            entry = self._entries.setdefault(key, _Entry(now))
        with entry.lock:
            if not entry.is_done:
                entry.result, entry.is_done = compute(), True
        result: T = entry.result
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One request for a page or for its data."""

    session: Session
    store: Store
    cache: SharedCache
    scope: Scope
    now: datetime
    route: Route
    controls: Controls

    @property
    def span(self) -> Span:
        """The time range that the controls select."""
        return self.controls.span(self.now)

    def compared(
        self, charts: Mapping[str, Chart], earlier: Callable[[Span], Mapping[str, Chart]]
    ) -> Mapping[str, Chart]:
        """Return charts with the lines of the earlier period that the controls select."""
        span = self.controls.earlier(self.now)
        if span is None:
            return charts
        others, label = earlier(span), EARLIER[self.controls.compare][0].lower()
        shift_ns = self.span.start_ns - span.start_ns
        return {
            key: with_earlier(chart, others[key], shift_ns=shift_ns, label=label)
            if key in others
            else chart
            for key, chart in charts.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Services from the portal; `scope_provider` returns the scope of the current request."""

    sessions: SessionFactory
    store: Store
    scope_provider: Callable[[], Scope]
    clock: Clock
    cache: SharedCache
    refreshes: SharedCache

    @contextmanager
    def view(self, path: str | None, search: str | None) -> Iterator[View]:
        """Open a read-only session for the current request."""
        scope = self.scope_provider()
        with self.sessions() as session:
            yield View(
                session=session,
                store=self.store,
                cache=self.cache,
                scope=scope,
                now=self.clock(),
                route=parse_path(path),
                controls=Controls.parse(search),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A tier's page with empty areas and panels, which refreshes fill.

    Attributes:
        crumbs: (label, href) of the tiers above, outermost first.
        has_range: whether the time range applies; a job is shown from its start to its end.
        peers: what else it can be compared with, besides earlier periods: key to label.
    """

    title: str
    crumbs: tuple[tuple[str, str], ...]
    body: Any
    has_range: bool = True
    peers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One tier. Its components have ids that begin with the tier's name: `gpu-header`.

    Attributes:
        layout: returns the page.
        refresh: returns new values by name. It may also return `problem`, a message about the whole
            page.
        areas: components whose children a refresh replaces.
        panels: charts whose figure a refresh replaces.
        properties: other properties that a refresh sets, such as `filters.hidden`.
        inputs: form controls with their default; the address holds their values as `choices`.
    """

    layout: Callable[[View], Page]
    refresh: Callable[[View], Mapping[str, Any]]
    areas: tuple[str, ...]
    panels: tuple[str, ...]
    properties: tuple[str, ...] = ()
    inputs: Mapping[str, str] = field(default_factory=dict)
