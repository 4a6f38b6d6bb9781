"""Fetches a version, or indexes a source, from where the portal says that its content is now."""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from threading import RLock

from collector.datasets.cache import Cache
from collector.datasets.errors import StoppedError
from collector.datasets.fetching import VersionFetch
from collector.datasets.indexing import SourceIndexer
from collector.datasets.origins import PortalOrigin, PortalPages, SourceOrigin
from collector.datasets.parts import Origin
from collector.datasets.peers import PeerClient, PeerTLS
from collector.datasets.reading import ReadAhead
from collector.datasets.settings import DatasetSettings
from collector.datasets.sources import Source, open_source
from collector.datasets.tasks import Task
from collector.sending.portal_connection import PortalConnection
from collector.tls import TLSContexts
from protocol.datasets import DatasetSource, IndexOrder, SourceKind, StagedDataset

log = logging.getLogger(__name__)


class Transfers:
    """What all transfers share: the portal, peers, and the credentials that hold now. Thread-safe.

    Args:
        settings: the cache.
        cache: where versions are.
        connect: opens a connection to the portal.
        own_id: this appliance.
        peer_tls: certificates for peers; None without peers.
        tls: the trusted authorities, for web servers.
    """

    def __init__(
        self,
        settings: DatasetSettings,
        cache: Cache,
        *,
        connect: Callable[[], PortalConnection],
        own_id: str,
        peer_tls: PeerTLS | None,
        tls: TLSContexts | None,
    ) -> None:
        self._settings = settings
        self._cache = cache
        self._portal = PortalPages(connect)
        self._portal_origin = PortalOrigin(self._portal)
        self._own_id = own_id
        self._peer_tls = peer_tls
        self._tls = tls
        self._reads = ReadAhead()
        self._sources: dict[str, DatasetSource] = {}
        self._newest: dict[str, StagedDataset] = {}

    def set_desired(self, staged: Sequence[StagedDataset], index: Iterable[IndexOrder]) -> None:
        """Take the credentials and peers of all datasets, which are never stored."""
        self._newest = {dataset.version_id: dataset for dataset in staged}
        self._sources = {dataset.version_id: dataset.source for dataset in staged}
        self._sources |= {order.version_id: order.source for order in index}

    def has_source(self, version_id: str) -> bool:
        """Return whether it is known where a version comes from."""
        return version_id in self._sources

    def fetch(self, task: Task, wanted: StagedDataset, *, fetched: Callable[[], None]) -> None:
        """Fetch a version, then index it.

        Args:
            task: of the version.
            wanted: the version, as it was ordered first.
            fetched: called once it is in the cache.

        Raises:
            DataError: it can't be fetched.
        """
        version_id, tls = wanted.version_id, self._peer_tls
        with ExitStack() as closing:
            peers = PeerClient(tls) if tls is not None and tls.is_ready else None
            if peers is not None:
                closing.callback(peers.close)
            task.fetch = VersionFetch(
                lambda: self._newest.get(version_id) or wanted,
                cache=self._cache,
                manifests=self._portal,
                origin=self._origins(version_id, closing),
                peers=peers,
                own_id=self._own_id,
                reads=self._reads,
                progress=task.progress,
                stop=task.stop,
                retry_seconds=self._settings.retry_seconds,
                peer_wait_seconds=self._settings.peer_wait_seconds,
            )
            task.fetch.run()
            log.info("dataset %s is in the cache", task.progress.name)
            fetched()
            task.fetch.index_equal()

    def index(self, task: Task, order: IndexOrder) -> None:
        """Index a source for the portal.

        Raises:
            DataError: it can't be read.
        """
        with ExitStack() as closing:
            SourceIndexer(
                order,
                cache=self._cache,
                portal=self._portal,
                source=self._newest_source(order.version_id, closing),
                reads=self._reads,
                progress=task.progress,
                stop=task.stop,
                retry_seconds=self._settings.retry_seconds,
            ).run()

    def close(self) -> None:
        """End the threads that read, and the connections."""
        self._reads.close()
        self._portal.close()

    def _origins(self, version_id: str, closing: ExitStack) -> Callable[[], Origin]:
        newest = self._newest_source(version_id, closing)
        lock = RLock()

        def origin() -> Origin:
            source = self._source(version_id)
            if source.kind is SourceKind.UPLOAD:
                return self._portal_origin
            with lock:
                return SourceOrigin(newest(), source.url)

        return origin

    def _newest_source(self, version_id: str, closing: ExitStack) -> Callable[[], Source]:
        """Return what opens a source, anew when the portal sends other credentials."""
        lock = RLock()
        current: list[tuple[DatasetSource, Source]] = []

        def source() -> Source:
            wanted = self._source(version_id)
            with lock:
                if not current or current[0][0] != wanted:
                    made = open_source(wanted, mounts=self._cache.mounts, tls=self._tls)
                    closing.callback(made.close)
                    current[:] = [(wanted, made)]
                return current[0][1]

        return source

    def _source(self, version_id: str) -> DatasetSource:
        try:
            return self._sources[version_id]
        except KeyError:
            raise StoppedError("The portal has withdrawn the dataset's credentials.") from None
