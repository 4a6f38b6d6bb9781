"""The stager: has datasets in the cache before their attempts start, and what the portal orders.

One thread at a time fetches a version, or indexes a source; two may run at once, so that the small
dataset of a job does not wait for a prefetch of days. Attempts come first, then what jobs wait for
that are to start here, then pins, then prefetches. What is wanted less pauses for them.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib.util import find_spec
from threading import Event, RLock, Thread

from collector.data_dir import Identity
from collector.datasets.cache import Cache
from collector.datasets.errors import DataError, StoppedError
from collector.datasets.peer_server import PeerServer
from collector.datasets.peers import PeerParts, PeerTLS
from collector.datasets.progress import Progress, combined
from collector.datasets.serving import PartReader
from collector.datasets.settings import DatasetSettings
from collector.datasets.tasks import (
    ATTEMPT,
    AWAITED,
    INDEX,
    MAX_MESSAGE_LENGTH,
    PINNED,
    PREFETCH,
    Task,
    Tasks,
    join,
)
from collector.datasets.transfers import Transfers
from collector.errors import PortalRefusedError
from collector.sending.portal_connection import PortalConnection
from collector.tls import TLSContexts
from core.quantities import format_size
from protocol.attempts import DesiredState, StagingProgress
from protocol.datasets import (
    CopyState,
    DatasetCopy,
    DatasetOrders,
    DatasetReport,
    IndexOrder,
    StagedDataset,
)

log = logging.getLogger(__name__)

REPORT_SECONDS = 30.0
# A portal that is updated later gets reports then.
OLD_PORTAL_SECONDS = 600.0
UNKNOWN_TO_OLD_PORTALS = frozenset({404, 405})


class Stager:
    """Fetches and indexes datasets. Thread-safe.

    Args:
        settings: the cache.
        cache: where versions are.
        connect: opens a connection to the portal.
        identity: this appliance.
        peer_tls: certificates for peers; None without peers.
        tls: the trusted authorities, for web servers.
        wake: called when an attempt may go on.
    """

    def __init__(
        self,
        settings: DatasetSettings,
        cache: Cache,
        *,
        connect: Callable[[], PortalConnection],
        identity: Identity,
        peer_tls: PeerTLS | None = None,
        tls: TLSContexts | None = None,
        wake: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.cache = cache
        self._transfers = Transfers(
            settings,
            cache,
            connect=connect,
            own_id=identity.appliance_id,
            peer_tls=peer_tls,
            tls=tls,
        )
        self._peer_tls = peer_tls
        self.wake = wake
        self._monotonic = monotonic
        self._lock = RLock()
        self.is_loaded = False
        self._load_error = ""
        self._closing = Event()
        self._tasks = Tasks(self._run, monotonic=monotonic)
        self._attempts: dict[str, list[StagedDataset]] = {}
        self._orders = DatasetOrders()
        self._parts = PartReader()
        self._reported: tuple[object, ...] = ()
        self._reported_at: float | None = None
        self._report_not_before = 0.0
        self._server: PeerServer | None = None
        self._loader: Thread | None = None

    # Called by the agent

    def start(self) -> None:
        """Read the cache in a thread of its own, then serve peers and fetch what is wanted."""
        self._loader = Thread(target=self._load, name="data-load", daemon=True)
        self._loader.start()

    def set_desired(self, desired: DesiredState) -> None:
        """Take orders, and the credentials and peers of all datasets, which are never stored."""
        with self._lock:
            orders = self._orders = desired.datasets
            staged = [*orders.pinned, *orders.prefetch]
            staged += [dataset for spec in desired.attempts for dataset in spec.datasets]
            self._transfers.set_desired(staged, orders.index)
            if self.is_loaded:
                self.cache.set_pinned(dataset.version_id for dataset in orders.pinned)
            self._settle()

    def trees(self, attempt_id: str, datasets: Sequence[StagedDataset]) -> list[str] | None:
        """Return the folders of an attempt's versions, in use from now on; None until all are.

        Raises:
            DataError: one can't be fetched.
        """
        with self._lock:
            if self._load_error:
                raise DataError(self._load_error)
            if not self.is_loaded:
                return None
            trees = self.cache.begin_use(attempt_id, [own.version_id for own in datasets])
            if trees is not None:
                self._attempts.pop(attempt_id, None)
                return [str(tree) for tree in trees]
            if attempt_id not in self._attempts:
                self._attempts[attempt_id] = list(datasets)
                for dataset in datasets:  # what failed for another attempt is tried anew
                    self._tasks.forget_failure(dataset.version_id)
                self._settle()
            for dataset in datasets:
                if error := self._tasks.error(dataset.version_id):
                    raise DataError(error)
        return None

    def progress(self, attempt_id: str) -> tuple[str, StagingProgress | None]:
        """Return how far the data of an attempt is."""
        with self._lock:
            if not self.is_loaded:
                return "Checking the cache of datasets after the agent's start.", None
            datasets = self._attempts.get(attempt_id, [])
            versions, is_waiting, lacks_source = [], False, False
            for dataset in datasets:
                task = self._tasks.get(dataset.version_id)
                if self.cache.complete(dataset.version_id) is not None:
                    own = Progress(dataset.name, dataset.total_bytes)
                    own.staged_bytes = dataset.total_bytes
                elif task is not None:
                    own = task.progress
                    is_waiting |= not task.is_running
                else:
                    own = Progress(dataset.name, dataset.total_bytes)
                    lacks_source |= not self._transfers.has_source(dataset.version_id)
                versions.append(own)
        if not versions:
            return "", None
        message, staging = combined(versions)
        if lacks_source:
            message += ". Waiting for the portal: it has the credentials"
        elif is_waiting:
            message += ". Waiting for other datasets that are being fetched"
        return message, staging

    def forget(self, attempt_ids: Collection[str]) -> None:
        """Keep only what these attempts use or wait for."""
        with self._lock:
            if not self.is_loaded:
                return
            for attempt_id in self._attempts.keys() - set(attempt_ids):
                del self._attempts[attempt_id]
            self.cache.keep_uses(attempt_ids)
            self._settle()

    def report_step(self, portal: PortalConnection) -> float:
        """Report the cache if it has changed, or a report is due; return seconds to the next check.

        Raises:
            PortalUnreachableError: the next call sends it.
        """
        if self.is_loaded:
            self._serve()  # the first certificate may have come
        with self._lock:
            self._settle()
            if not self.is_loaded:
                return 1.0
            report = self.report()
        shape = (
            report.peer_url,
            *(
                (copy.version_id, copy.state, copy.message)
                for copy in (*report.copies, *report.indexing)
            ),
        )
        now = self._monotonic()
        is_due = self._reported_at is None or now - self._reported_at >= REPORT_SECONDS
        if now < self._report_not_before:
            return 1.0
        if shape != self._reported or is_due:
            try:
                portal.report_datasets(report)
            except PortalRefusedError as error:
                if error.http_status not in UNKNOWN_TO_OLD_PORTALS:
                    raise
                if not self._report_not_before:
                    log.info("the portal is older than this agent, and takes no datasets")
                self._report_not_before = now + OLD_PORTAL_SECONDS
                return 1.0
            self._report_not_before = 0.0
            self._reported, self._reported_at = shape, now
        return 1.0

    def report(self) -> DatasetReport:
        """Return what is in the cache."""
        with self._lock:
            copies = {}
            for version_id, cached in self.cache.versions().items():
                if cached.is_complete and cached.record is not None:
                    fetched_bytes, peer_bytes = self._tasks.counted(version_id)
                    copies[version_id] = DatasetCopy(
                        version_id=version_id,
                        state=CopyState.COMPLETE,
                        cached_bytes=cached.record.total_bytes,
                        fetched_bytes=fetched_bytes,
                        peer_bytes=peer_bytes,
                        last_used_at_ns=cached.last_used_ns,
                    )
            indexing = []
            for version_id, task in self._tasks:
                copy = self._tasks.copy_of(version_id, task)
                if isinstance(task.wanted, IndexOrder):
                    indexing.append(copy)
                else:
                    copies.setdefault(version_id, copy)
            return DatasetReport(
                copies=list(copies.values())[:10_000],
                indexing=indexing[:1000],
                cache_bytes=self.cache.size_bytes,
                cache_limit_bytes=self.cache.max_bytes,
                bytes_per_second=self._tasks.rate(),
                peer_url=self.settings.public_url if self._server is not None else "",
            )

    def metrics(self) -> Mapping[str, float | int | None]:
        """Return fields of measurement `agent`; None where there is nothing."""
        with self._lock:
            fetched_bytes, peer_bytes = self._tasks.totals()
            cache_bytes = self.cache.size_bytes if self.is_loaded else 0
        if not cache_bytes and not fetched_bytes:
            return {}
        return {
            "dataset_cache_bytes": cache_bytes,
            "dataset_fetched_bytes": fetched_bytes,
            "dataset_peer_bytes": peer_bytes,
        }

    def close(self) -> None:
        """End the threads; the cache stays."""
        self._closing.set()
        with self._lock:
            threads = self._tasks.stop()
        join(threads)
        if self._server is not None:
            self._server.close()
        self._transfers.close()
        self.cache.close()

    # For peers

    @property
    def is_busy(self) -> bool:
        """Whether anything is being fetched or indexed."""
        with self._lock:
            return self._tasks.is_busy

    def allowed_peers(self) -> Collection[str]:
        """Return the appliances that may fetch from this one."""
        return self._orders.peers

    def parts_of_version(self, version_id: str) -> PeerParts | None:
        """Return what is there of a version; None if nothing is."""
        with self._lock:
            if self.cache.complete(version_id) is not None:
                return PeerParts(is_complete=True)
            task = self._tasks.get(version_id)
            fetch = task.fetch if task is not None else None
        if fetch is None:
            return None
        return PeerParts(pages={index: bytes(bits) for index, bits in list(fetch.done.items())})

    def read_part(
        self, version_id: str, page_index: int, part_index: int, offset: int, size_bytes: int
    ) -> Iterator[bytes]:
        """Yield a range of a part that is there.

        Raises:
            DataError, OSError: it is not.
        """
        with self._lock:
            task = self._tasks.get(version_id)
            cached = self.cache.complete(version_id)
            wanted = task.wanted if task is not None and task.fetch is not None else None
        if cached is not None and cached.record is not None:
            folder, digest = cached.folder, cached.record.digest
        elif isinstance(wanted, StagedDataset):
            folder, digest = self.cache.versions()[version_id].folder, wanted.digest
        else:
            raise DataError("There is no such version.")
        place = page_index, part_index
        return self._parts.read(folder, digest, place, offset=offset, size_bytes=size_bytes)

    # Threads

    def _load(self) -> None:
        try:
            self.cache.load()
        except Exception as error:  # noqa: BLE001 - jobs without datasets go on
            reason = (error.strerror if isinstance(error, OSError) else None) or repr(error)
            self._load_error = (
                f"The cache of datasets {self.cache.folder} can't be read: {reason}. Check its "
                "disk, and that the agent's user owns it."
            )
            log.error("%s", self._load_error)  # noqa: TRY400
            self.wake()
            return
        self._serve()
        with self._lock:
            self.is_loaded = True
            self._settle()
        log.info("the cache of datasets has %s", format_size(self.cache.size_bytes))
        self.wake()

    def _serve(self) -> None:
        """Listen for peers, once there is a certificate."""
        if not self.settings.peer_listen or self._peer_tls is None or self._server is not None:
            return
        if not self._peer_tls.is_ready:
            return
        try:
            server = PeerServer(
                self.settings.peer_address,
                tls=self._peer_tls,
                shared=self,
                allowed=self.allowed_peers,
                max_connections=self.settings.peer_max_connections,
                max_bytes_per_second=self.settings.peer_max_bytes_per_second,
            )
        except OSError as error:
            log.warning("can't listen for peers on %s: %s", self.settings.peer_listen, error)
            return
        server.start()
        self._server = server

    def _settle(self) -> None:
        """Begin and end tasks, so that they are those that are wanted."""
        if not self.is_loaded or self._closing.is_set():
            return
        self.cache.set_order(self._ahead())
        self._tasks.settle(self._wanted())

    def _wanted(self) -> dict[str, tuple[StagedDataset | IndexOrder, int]]:
        """Return what should be fetched or indexed, by version, with who wants it most."""
        wanted: dict[str, tuple[StagedDataset | IndexOrder, int]] = {}
        waiting = [dataset for datasets in self._attempts.values() for dataset in datasets]
        prefetch, awaited = self._orders.prefetch, self._orders.awaited
        ranked: list[tuple[int, Sequence[StagedDataset]]] = [
            (ATTEMPT, waiting),
            (AWAITED, prefetch[:awaited]),
            (PINNED, self._orders.pinned),
            (PREFETCH, prefetch[awaited:]),
        ]
        for rank, datasets in ranked:
            for dataset in datasets:
                version_id = dataset.version_id
                is_there = self.cache.complete(version_id) is not None
                is_present = self._transfers.has_source(version_id)
                if not is_there and is_present and version_id not in wanted:
                    wanted[version_id] = dataset, rank
        for order in self._orders.index:
            wanted.setdefault(order.version_id, (order, INDEX))
        return wanted

    def _ahead(self) -> list[str]:
        """Return what is fetched ahead of attempts: the first of these may take others' place."""
        prefetch, awaited = self._orders.prefetch, self._orders.awaited
        ahead = [*prefetch[:awaited], *self._orders.pinned, *prefetch[awaited:]]
        waiting = {data.version_id for own in self._attempts.values() for data in own}
        return [data.version_id for data in ahead if data.version_id not in waiting]

    def _run(self, task: Task) -> None:
        error, is_stopped = "", False
        try:
            if isinstance(task.wanted, IndexOrder):
                self._transfers.index(task, task.wanted)
            else:
                self._transfers.fetch(task, task.wanted, fetched=self.wake)
        except StoppedError:
            is_stopped = True
        except DataError as failure:
            error = str(failure)[:MAX_MESSAGE_LENGTH]
            log.warning("dataset %s: %s", task.progress.name, error)
        except Exception as failure:
            log.exception("dataset %s failed", task.progress.name)
            error = f"The agent failed: {failure!r}. See its log."[:MAX_MESSAGE_LENGTH]
        with self._lock:
            self._tasks.end(task, error=error, is_stopped=is_stopped)
            self._settle()
        self.wake()


def can_stage(settings: DatasetSettings) -> bool:
    """Return whether this agent can fetch datasets: it needs the extra `data`."""
    return settings.enabled and find_spec("obstore") is not None
