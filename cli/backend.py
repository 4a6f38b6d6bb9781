"""What the parts of a server share."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event

from cli.database import open_database
from cli.keys import check_keys
from core.broker import Broker, join_changes, open_broker
from core.clock import utc_now
from core.db import SessionFactory, changes_of, transaction
from core.errors import UnavailableError
from core.schema_check import require_schema
from core.secretbox import SecretBox
from core.settings import ServerSettings
from core.shared_limits import SharedLimits
from tenants.pki.authority import signing_authority
from tenants.users.sightings import Sightings
from timeseries.open_store import open_store
from timeseries.store import Store, StoreUnavailableError, check_store
from timeseries.timed_store import timed

log = logging.getLogger(__name__)

RECENT_FOLDER = "recent-samples"
AUTHORITY_SECONDS = 40.0


@dataclass(frozen=True, slots=True)
class Backend:
    """The parts that portal, agent API and scheduler share.

    `draining` is set while the server waits for load balancers to choose others.
    """

    settings: ServerSettings
    sessions: SessionFactory
    store: Store
    sightings: Sightings
    broker: Broker = field(default_factory=Broker)
    limits: SharedLimits = field(default_factory=SharedLimits)
    draining: Event = field(default_factory=Event)


@contextmanager
def open_backend(settings: ServerSettings) -> Iterator[Backend]:
    """Open the database (migrated to the newest revision), store and broker; close all at the end.

    A store or broker that is away is a warning.
    """
    with open_database(settings, may_create=True) as (engine, sessions):
        require_schema(engine)
        _require_keys(sessions, settings)
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
            with open_broker(settings) as broker:
                join_changes(broker, changes_of(sessions))
                yield Backend(
                    settings,
                    sessions,
                    timed(store),
                    Sightings(sessions),
                    broker=broker,
                    limits=SharedLimits(broker),
                )
        finally:
            store.close()


def _require_keys(sessions: SessionFactory, settings: ServerSettings) -> None:
    """Check that all processes have the same keys, also before the first secret of a user.

    Whoever comes first encrypts the key of the certificate authority, and others must read it.
    """
    signed_by = time.monotonic() + AUTHORITY_SECONDS
    while True:
        try:
            with transaction(sessions) as session:
                signing_authority(session, SecretBox.of(settings), now=utc_now())
            break
        except UnavailableError:  # another process creates it
            if time.monotonic() > signed_by:
                raise
            time.sleep(0.2)
    check_keys(sessions, settings)


def _warn_if_unavailable(store: Store) -> None:
    # A server that stores the time series may start later.
    try:
        check_store(store)
    except StoreUnavailableError as error:
        log.warning("/health is 503 until the store answers: %s", error.message)
