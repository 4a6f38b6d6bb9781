"""The common parts of the tiers: the portal's services, a request's view, a tier's contract."""

import threading
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from core.clock import Clock
from core.db import SessionFactory, transaction
from core.rate_limits import ConcurrencyLimit
from dash_app.charts import Chart, with_earlier
from dash_app.routes import Route, parse_path
from dash_app.timerange import EARLIER, Controls, Span
from tenants.scope import Scope
from timeseries.store import Store

T = TypeVar("T")
MINUTE = timedelta(minutes=1)
# Viewers of the same page refresh it together.
REFRESH_TTL = timedelta(seconds=2)
# The oldest results make room for new ones.
MAX_ENTRIES = 500


@dataclass(slots=True)
class _Entry:
    """A result, or its computation under way."""

    made_at: datetime
    lock: threading.Lock = field(default_factory=threading.Lock)
    result: Any = None
    is_done: bool = False
    error: Exception | None = None
    weight: int = 1


class SharedCache:
    """Shares results between requests by key; concurrent callers wait for one computation.

    Args:
        clock: the time.
        ttl: for how long a result is shared.
        most: the weight of all results together; the oldest make room for new ones.
        weigh: returns the weight of a result.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        ttl: timedelta,
        max_weight: int = MAX_ENTRIES,
        weigh: Callable[[Any], int] = lambda _result: 1,
    ) -> None:
        self._clock = clock
        self._ttl = ttl
        self._max_weight = max_weight
        self._weigh = weigh
        self._lock = threading.Lock()
        self._entries: dict[Hashable, _Entry] = {}

    def get(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the cached result, or compute and cache it; callers that wait share a failure."""
        with self._lock:
            now = self._clock()
            self._entries = {
                cached_key: entry
                for cached_key, entry in self._entries.items()
                if not entry.is_done or timedelta(0) <= now - entry.made_at < self._ttl
            }
            entry = self._entries.setdefault(key, _Entry(now))
        with entry.lock:
            if entry.error is not None:
                raise entry.error
            if not entry.is_done:
                try:
                    entry.result = compute()
                    entry.made_at, entry.is_done = self._clock(), True
                except Exception as error:
                    entry.error = error
                    with self._lock:
                        self._entries.pop(key, None)
                    raise
                entry.weight = self._weigh(entry.result)
                self._make_room()
        result: T = entry.result
        return result

    def _make_room(self) -> None:
        with self._lock:
            weight = sum(entry.weight for entry in self._entries.values())
            while weight > self._max_weight:
                weight -= self._entries.pop(next(iter(self._entries))).weight


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One request for a page or for its data."""

    session: Session
    store: Store
    cache: SharedCache
    custom: ConcurrencyLimit
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
    """Services from the portal, for the current request.

    `scope_provider` returns the scope of its user, and `zone_provider` the name of their time zone.

    `custom` limits how many custom dashboards of a tenant are refreshed concurrently.
    """

    sessions: SessionFactory
    store: Store
    scope_provider: Callable[[], Scope]
    zone_provider: Callable[[], str]
    clock: Clock
    cache: SharedCache
    refreshes: SharedCache
    custom: ConcurrencyLimit

    @contextmanager
    def view(self, path: str | None, search: str | None) -> Iterator[View]:
        """Open a read-only session for the current request."""
        scope = self.scope_provider()
        with transaction(self.sessions) as session:
            yield View(
                session=session,
                store=self.store,
                cache=self.cache,
                custom=self.custom,
                scope=scope,
                now=self.clock(),
                route=parse_path(path),
                controls=Controls.parse(search, user_zone=self.zone_provider()),
            )


@dataclass(frozen=True, slots=True)
class Choice:
    """A menu of the toolbar that writes a query parameter; without a value all options apply."""

    parameter: str
    label: str
    options: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A tier's page with empty areas and panels, which refreshes fill.

    Attributes:
        crumbs: (label, href) of the tiers above, outermost first.
        has_range: whether the time range applies; a job is shown from its start to its end.
        has_toolbar: whether there is anything to compare or to refresh.
        peers: what else it can be compared with, besides earlier periods: key to label.
        choices: menus of the page's own.
        parameters: names of query parameters besides those of all dashboards.
    """

    title: str
    crumbs: tuple[tuple[str, str], ...]
    body: Any
    has_range: bool = True
    has_toolbar: bool = True
    peers: Mapping[str, str] = field(default_factory=dict)
    choices: Sequence[Choice] = ()
    parameters: Collection[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One tier. Its components have ids that begin with the tier's name: `gpu-header`.

    Attributes:
        layout: returns the page.
        refresh: returns new values by name. It may also return `problem`, a message about the whole
            page.
        areas: areas (see `markup`) whose content a refresh replaces.
        panels: charts whose figure a refresh replaces.
        properties: other properties that a refresh sets, such as `filters.hidden`.
        inputs: form controls with their default; the address holds their values as `choices`.
        parts: components of which a page has any number, with the property that a refresh sets:
            that of `chart` number 3 is named `chart.3`.
        is_personal: users with the same rights may see different data.
    """

    layout: Callable[[View], Page]
    refresh: Callable[[View], Mapping[str, Any]]
    areas: tuple[str, ...]
    panels: tuple[str, ...]
    properties: tuple[str, ...] = ()
    inputs: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)
    is_personal: bool = False
