"""Fetches one version: the manifest from the portal, parts from peers, source or the portal."""

import errno
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from threading import Event, Lock, Thread
from typing import Protocol, TypeVar

import msgspec

from collector.datasets.cache import Cache
from collector.datasets.equal_files import key_of
from collector.datasets.errors import ContentError, DataError, StoppedError, TemporaryDataError
from collector.datasets.part_writers import Writer
from collector.datasets.parts import Origin, Part, Segment, parts_of, pieces_of
from collector.datasets.progress import Progress
from collector.datasets.queue import PartQueue, Place
from collector.datasets.reading import ReadAhead
from collector.datasets.version_folder import VersionRecord
from collector.errors import PortalRefusedError, PortalUnreachableError
from protocol.datasets import ManifestHead, ManifestPage, PeerAddress, StagedDataset
from protocol.manifests import decode_page, head_digest

log = logging.getLogger(__name__)

T = TypeVar("T")

NOT_FOUND = 404
WORKERS = 4
# In a piece: above that, threads take longer to take turns at the interpreter than to create files.
MANY_FILES = 32
CACHED_PAGES = 4
WAIT_SECONDS = 0.25
FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.5, 20.0
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Manifests(Protocol):
    """Where manifests come from: the portal."""

    def head(self, version_id: str) -> bytes:
        """Return the JSON of a head."""

    def page(self, version_id: str, sha256: str) -> bytes:
        """Return a page as it is stored."""


class Peers(Protocol):
    """The appliances that may have parts of a version."""

    def update(self, version_id: str, peers: Sequence[PeerAddress]) -> None:
        """Ask who has what, unless that was just asked."""

    def others(self) -> list[str]:
        """Return who answered, and may be fetching the version."""

    def having(self, place: Place) -> list[Origin]:
        """Return who has a part, in the order in which to try."""

    def distrust(self, origin: Origin) -> None:
        """Leave out a peer for a while: it did not answer, or sent something else."""


class VersionFetch:
    """Fetches a version into the cache; `run` belongs to one thread.

    Args:
        dataset: returns what is wanted now: sources and peers may change meanwhile.
        cache: where it is written.
        manifests: where the manifest comes from.
        origin: returns where parts come from that no peer has.
        peers: who may have parts; None if the tenant or the agent has none.
        own_id: this appliance, to share the parts out among those that fetch at the same time.
        reads: the threads that read.
        stop: set when nobody wants the version any more.
        retry_seconds: how long a source that does not answer is tried.
        peer_wait_seconds: how long to wait for a part that a peer is fetching.
    """

    def __init__(
        self,
        dataset: Callable[[], StagedDataset],
        *,
        cache: Cache,
        manifests: Manifests,
        origin: Callable[[], Origin],
        peers: Peers | None,
        own_id: str,
        reads: ReadAhead,
        progress: Progress,
        stop: Event,
        retry_seconds: float,
        peer_wait_seconds: float,
    ) -> None:
        self._dataset = dataset
        self._cache = cache
        self._manifests = manifests
        self._origin = origin
        self._peers = peers
        self._own_id = own_id
        self._reads = reads
        self._progress = progress
        self._stop = stop
        self._retry_seconds = retry_seconds
        self._peer_wait_seconds = peer_wait_seconds
        self._version_id = dataset().version_id
        self._folder = cache.open(self._version_id)
        self._head: ManifestHead | None = None
        self._pages: OrderedDict[int, tuple[ManifestPage, list[Part]]] = OrderedDict()
        self._lock = Lock()
        self._page_lock = Lock()
        self._failure: Exception | None = None
        self._worked_at = time.monotonic()
        self._mismatches: set[tuple[int, int]] = set()
        self.done: dict[int, bytearray] = {}
        self._is_new = False
        self._tried: set[Place] = set()
        self._queue = PartQueue(own_id, digest=dataset().digest)

    def run(self) -> None:
        """Fetch all that is missing, and mark the version as complete.

        Raises:
            DataError: it can't be fetched; what was fetched stays for the next try.
        """
        try:
            self._run()
        except OSError as error:
            raise self._disk_error(error) from error
        finally:
            self._cache.release(self._version_id)

    def _run(self) -> None:
        dataset = self._dataset()
        head = self._retrying(self._load_head)
        self._head = head
        if not self._folder.is_of_this_boot:
            self._recheck(head)
        # Nothing that is there has to be looked for, which counts for a million files.
        self._is_new = self._folder.is_empty() and self._cache.equal.is_empty()
        missing_bytes = head.total_bytes - self._scan(head)
        self._retrying(
            lambda: self._cache.reserve(self._version_id, missing_bytes, name=dataset.name)
        )
        workers = [
            Thread(target=self._work, name=f"data-write-{number}", daemon=True)
            for number in range(WORKERS)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if self._failure is not None:
            raise self._failure
        self._check_stop()
        record = VersionRecord(
            digest=dataset.digest,
            name=dataset.name,
            number=dataset.number,
            file_count=head.file_count,
            total_bytes=head.total_bytes,
        )
        self._cache.set_complete(self._version_id, record)

    def index_equal(self) -> None:
        """Let later versions find the files of this one."""
        if self._head is not None:
            for index in range(len(self._head.pages)):
                page, _ = self.page(index)
                self._cache.equal.add(self._version_id, page)

    def page(self, index: int) -> tuple[ManifestPage, list[Part]]:
        """Return a page and its parts; the last few stay in memory.

        Raises:
            DataError: it can't be fetched.
        """
        # One thread reads a page, and the others wait for it: they take parts of the same one.
        with self._page_lock:
            if (cached := self._pages.get(index)) is not None:
                self._pages.move_to_end(index)
                return cached
            page = self._load_page(index)
            self._pages[index] = page, parts_of(page, index)
            while len(self._pages) > CACHED_PAGES:
                self._pages.popitem(last=False)
            return self._pages[index]

    def _load_head(self) -> ManifestHead:
        digest = self._dataset().digest
        stored = self._folder.head(digest)
        if stored is not None:
            return stored
        raw = _from_portal(lambda: self._manifests.head(self._version_id))
        try:
            head = msgspec.json.decode(raw, type=ManifestHead)
        except msgspec.MsgspecError as error:
            raise DataError(f"The portal's manifest can't be read: {error}.") from error
        if head_digest(head) != digest:
            raise DataError(
                f"The portal's manifest of {self._progress.name} is not the one of its version: "
                "its digest is another. Add the dataset again."
            )
        self._folder.store_head(head)
        return head

    def _load_page(self, index: int) -> ManifestPage:
        assert self._head is not None  # noqa: S101 - checked before
        sha256 = self._head.pages[index].sha256
        stored = self._folder.page(sha256)
        if stored is not None:
            return stored
        raw = _from_portal(lambda: self._manifests.page(self._version_id, sha256))
        try:
            page = decode_page(raw, sha256)
        except ValueError as error:
            raise DataError(f"A page of the portal's manifest is damaged: {error}") from error
        self._folder.store_page(sha256, raw)
        return page

    def _recheck(self, head: ManifestHead) -> None:
        """Check what was written before the host crashed or booted: it may not be on the disk."""
        checked_bytes = 0
        self._progress.note = "Checking what was fetched before the appliance restarted."
        for index in range(len(head.pages)):
            _, parts = self._retrying(partial(self.page, index))
            for done_bytes in self._folder.recheck(parts):
                self._check_stop()
                checked_bytes += done_bytes
                self._progress.begin(checked_bytes)
        self._folder.set_boot()
        self._progress.note = ""

    def _scan(self, head: ManifestHead) -> int:
        """Find the parts that are missing, and link equal files; return the bytes there are."""
        staged_bytes = 0
        for index in range(len(head.pages)):
            page, parts = self._retrying(partial(self.page, index))
            self._check_stop()
            self._create_empty(page)
            if not self._is_new:
                self._link_equal(page)
            have = bytearray(-(-len(parts) // 8))
            for part in parts:
                done_bytes = 0 if self._is_new else self._folder.done_bytes(part)
                staged_bytes += done_bytes
                if done_bytes == part.stored.size_bytes:
                    have[part.part_index // 8] |= 1 << part.part_index % 8
                else:
                    self._queue.add(part)
            self.done[index] = have
            self._progress.begin(staged_bytes)
        return staged_bytes

    def _create_empty(self, page: ManifestPage) -> None:
        for file in page.files:
            if not file.size_bytes and not self._folder.has(file):
                self._folder.create_empty(file)

    def _link_equal(self, page: ManifestPage) -> None:
        missing = {key_of(page, file): file for file in page.files if not self._folder.has(file)}
        versions = self._cache.folder / "versions"
        for key, path in self._cache.equal.paths_of(list(missing)).items():
            if missing[key].size_bytes:
                self._folder.link(missing[key], versions / path)

    # Workers

    def _work(self) -> None:
        wait_seconds = FIRST_RETRY_SECONDS
        while self._failure is None and not self._stop.is_set():
            part = self._next_part()
            if part is None:
                if not self._queue.is_busy:
                    return
                self._stop.wait(WAIT_SECONDS)
                continue
            try:
                self._fetch(part)
            except TemporaryDataError as error:
                self._queue.put_back(part)
                self._note(error)
                self._stop.wait(wait_seconds)
                wait_seconds = min(2 * wait_seconds, MAX_RETRY_SECONDS)
            except DataError as error:
                self._fail(part, error)
            except OSError as error:
                self._fail(part, self._disk_error(error))
            except Exception as error:
                log.exception("fetching a part failed")
                self._fail(part, DataError(f"The agent failed: {error!r}. See its log."))
            else:
                wait_seconds = FIRST_RETRY_SECONDS
                self._finish(part)

    def _next_part(self) -> Part | None:
        peers = self._peers
        if peers is not None:
            peers.update(self._version_id, self._dataset().peers)
        place = self._queue.take(
            peers.others() if peers is not None else [],
            is_available=lambda place: bool(peers is not None and peers.having(place)),
            wait_seconds=self._peer_wait_seconds,
        )
        return self.page(place[0])[1][place[1]] if place is not None else None

    def _fetch(self, part: Part) -> None:
        """Fetch a part from a peer that has it, else from the source."""
        place = part.page_index, part.part_index
        for origin in self._peers.having(place) if self._peers is not None else ():
            try:
                self._copy(part, origin, is_from_peer=True)
            except DataError as error:
                self._check_stop()
                log.info("peer %s: %s", origin.name, error)
                if self._peers is not None:
                    self._peers.distrust(origin)
            else:
                return
        try:
            self._copy(part, self._origin(), is_from_peer=False)
        except ContentError as error:
            # What a crash left of it could be damaged: the second time all of it is fetched.
            if place in self._mismatches:
                raise DataError(
                    f"{error}, although it was fetched twice: the source has changed. "
                    "Make a new version of the dataset from what is there now."
                ) from error
            self._mismatches.add(place)
            raise TemporaryDataError(f"{error}. It is fetched again.") from error

    def _copy(self, part: Part, origin: Origin, *, is_from_peer: bool) -> None:
        starts = deque(self._starts(part))
        pieces = pieces_of(list(starts), may_join=origin.reads_whole_parts)
        writer: Writer | None = None
        segment: Segment | None = None
        try:
            for piece, received in self._reads.in_order(
                lambda piece: origin.read(part, piece), pieces
            ):
                self._check_stop()
                self._progress.add_fetched(len(received), is_from_peer=is_from_peer)
                content, position = received, piece.part_offset
                while content:
                    if writer is None or segment is None:
                        small = self._store_small(part, starts, content)
                        content, position = content[small:], position + small
                        if not content:
                            break
                        segment, _ = starts.popleft()
                        writer = self._open(part, segment)
                    end = segment.part_offset + segment.size_bytes
                    taken = content[: end - position]
                    writer.write(taken)
                    self._count(len(taken))
                    content, position = content[len(taken) :], position + len(taken)
                    if position == end:
                        done, writer = writer, None
                        self._end(done)
        finally:
            if writer is not None:
                writer.close()

    def _store_small(
        self, part: Part, starts: deque[tuple[Segment, int]], content: memoryview
    ) -> int:
        """Store the files that are whole in what was received; return their bytes."""
        if part.is_of_large_file:
            return 0
        whole: list[Segment] = []
        end = 0
        for segment, start in starts:
            if start != segment.part_offset or end + segment.size_bytes > len(content):
                break
            whole.append(segment)
            end += segment.size_bytes
        stored_bytes = 0
        try:
            with self._cache.creating if len(whole) >= MANY_FILES else nullcontext():
                for segment in whole:
                    end = stored_bytes + segment.size_bytes
                    self._folder.store(segment.file, content[stored_bytes:end])
                    starts.popleft()
                    stored_bytes = end
        finally:
            self._count(stored_bytes)
        return stored_bytes

    def _starts(self, part: Part) -> list[tuple[Segment, int]]:
        """Return what is missing of a part, each from a position on."""
        place = part.page_index, part.part_index
        is_untouched = self._is_new and place not in self._tried
        self._tried.add(place)
        if is_untouched and not part.is_of_large_file:
            return [(segment, segment.part_offset) for segment in part.segments]
        starts = []
        for segment in part.segments:
            if not part.is_of_large_file and self._folder.has(segment.file):
                continue
            started_bytes = self._folder.started_bytes(part, segment)
            if started_bytes >= segment.size_bytes:  # killed just before the check
                with suppress(ContentError):
                    self._end(self._open(part, segment))
                    continue
                started_bytes = 0
            starts.append((segment, segment.part_offset + started_bytes))
        return starts

    def _open(self, part: Part, segment: Segment) -> Writer:
        writer = self._folder.writer(part, segment)
        self._progress.add(writer.written_bytes)
        return writer

    def _end(self, writer: Writer) -> None:
        try:
            writer.finish()
        except ContentError:
            self._count(-writer.written_bytes)
            raise
        finally:
            writer.close()

    def _count(self, size_bytes: int) -> None:
        self._progress.add(size_bytes)
        self._cache.add_written(self._version_id, size_bytes)
        self._worked_at = time.monotonic()
        if self._progress.note:
            self._progress.note = ""

    def _finish(self, part: Part) -> None:
        with self._lock:
            self.done[part.page_index][part.part_index // 8] |= 1 << part.part_index % 8
        self._queue.finish(part)

    def _fail(self, part: Part, error: Exception) -> None:
        self._failure = self._failure or error
        self._queue.put_back(part)

    def _note(self, error: TemporaryDataError) -> None:
        self._progress.note = f"{str(error).rstrip('.')}. Trying again."
        if time.monotonic() - self._worked_at > self._retry_seconds:
            self._failure = self._failure or DataError(
                f"{str(error).rstrip('.')}, for {self._retry_seconds:.0f} s. Check the network "
                "between the appliance and the source, then start the job again."
            )

    def _retrying(self, action: Callable[[], T]) -> T:
        """Return what an action returns, once it works."""
        wait_seconds = FIRST_RETRY_SECONDS
        self._worked_at = time.monotonic()
        while True:
            self._check_stop()
            try:
                result = action()
            except TemporaryDataError as error:
                self._note(error)
                if self._failure is not None:
                    raise self._failure from error
                self._stop.wait(wait_seconds)
                wait_seconds = min(2 * wait_seconds, MAX_RETRY_SECONDS)
            else:
                self._progress.note = ""
                return result

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise StoppedError(f"{self._progress.name} is not wanted any more.")

    def _disk_error(self, error: OSError) -> DataError:
        folder = self._cache.folder
        if error.errno in _FULL:
            return DataError(
                f"The disk of the cache {folder} is full. Free space there, or raise "
                "min_free_bytes in [datasets] of agent.toml, so that older datasets are removed "
                "earlier."
            )
        return DataError(
            f"The cache {folder} can't be written: {error.strerror or error}. Check its disk, and "
            "that the agent's user owns it."
        )


def _from_portal(call: Callable[[], T]) -> T:
    try:
        return call()
    except PortalUnreachableError as error:
        raise TemporaryDataError(error.message) from error
    except PortalRefusedError as error:
        if error.http_status == NOT_FOUND:
            raise DataError(
                "The portal no longer has the manifest of this version. Submit the job again with "
                f"another version. ({error.message})"
            ) from error
        raise TemporaryDataError(error.message) from error
