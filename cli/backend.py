"""What the parts of a server share."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event

from cli.database import open_database
from core.db import SessionFactory
from core.schema_check import require_schema
from core.settings import ServerSettings
from tenants.users.sightings import Sightings
from timeseries.open_store import open_store
from timeseries.store import Store, StoreUnavailableError, check_store
from timeseries.timed_store import timed

log = logging.getLogger(__name__)

RECENT_FOLDER = "recent-samples"


@dataclass(frozen=True, slots=True)
class Backend:
    """The parts that portal, agent API and scheduler share.

    `draining` is set while the server waits for load balancers to choose others.
    """

    settings: ServerSettings
    sessions: SessionFactory
    store: Store
    sightings: Sightings
    draining: Event = field(default_factory=Event)


@contextmanager
def open_backend(settings: ServerSettings) -> Iterator[Backend]:
    """Open the database (migrated to the newest revision) and the store; close both at the end."""
    with open_database(settings, may_create=True) as (engine, sessions):
        require_schema(engine)
        store = open_store(
            settings.resolved_timeseries_url,
            memory_mib=settings.store_memory_mib,
            threads=settings.store_threads,
            cache_mib=settings.store_cache_mib,
            recovers=True,
            recent_folder=settings.data_dir / RECENT_FOLDER,
        )
        try:
            _warn_if_unavailable(store)
            yield Backend(settings, sessions, timed(store), Sightings(sessions))
        finally:
            store.close()


def _warn_if_unavailable(store: Store) -> None:
    # A server that stores the time series may start later.
    try:
        check_store(store)
    except StoreUnavailableError as error:
        log.warning("/health is 503 until the store answers: %s", error.message)
