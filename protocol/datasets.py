"""Datasets between portal and agent: versions, their manifests, orders and reports.

A *version* of a dataset never changes: its manifest lists every file with its SHA-256. The content
of all files, in the order of the manifest, is cut into *parts* of at most 64 MiB, by which it is
fetched, checked and resumed: a small file is within one part, at an offset; a large one has parts
of its own, of which only the last is shorter. A part is named by the SHA-256 of its content, so
the same content is stored and sent once.

The manifest is stored as pages of up to 10,000 files. Its *digest*, the SHA-256 of its head,
names the version.
"""

from enum import StrEnum
from typing import Annotated

import msgspec

PART_BYTES = 64 * 1024**2
MAX_PAGE_FILES = 10_000
MAX_PAGE_PARTS = 110_000
MAX_FILES = 5_000_000
MAX_PATH_LENGTH = 1024
MAX_PAGE_BYTES = 4 * 1024**2
"""Of a page, as it is stored: MessagePack, compressed by zlib."""
SHA256_LENGTH = 64
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Hash = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
"""A SHA-256 as bytes."""
Path = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_PATH_LENGTH)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class ManifestPart(msgspec.Struct, frozen=True, array_like=True):
    """A part of the content."""

    sha256: Hash
    size_bytes: Annotated[int, msgspec.Meta(ge=1, le=PART_BYTES)]


class ManifestFile(msgspec.Struct, frozen=True, array_like=True):
    """A file: its content begins at `offset` of the part with the index `part` of its page.

    A file above `PART_BYTES` takes whole parts of its own; its page has them all. An empty file is
    in no part: its `part` and `offset` are 0.
    """

    path: Path
    size_bytes: Count
    sha256: Hash
    part: int
    offset: int = 0
    is_executable: bool = False


class ManifestPage(msgspec.Struct, frozen=True, array_like=True):
    """Files in the order of their paths, with the parts that hold them."""

    files: Annotated[list[ManifestFile], msgspec.Meta(max_length=MAX_PAGE_FILES)]
    parts: Annotated[list[ManifestPart], msgspec.Meta(max_length=MAX_PAGE_PARTS)]


class PageEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A page in the head of a manifest; `sha256` is that of the page as it is stored."""

    sha256: Digest
    first_path: Path
    file_count: Count
    total_bytes: Count


class ManifestHead(msgspec.Struct, frozen=True, kw_only=True):
    """The head of a manifest; the SHA-256 of its canonical JSON names the version."""

    file_count: Count
    total_bytes: Count
    pages: list[PageEntry]


class SourceKind(StrEnum):
    """Where the content of a dataset is: `upload` is the portal's own store."""

    UPLOAD = "upload"
    S3 = "s3"
    HTTPS = "https"
    FILE = "file"
    NFS = "nfs"
    IPFS = "ipfs"


class DatasetSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where an agent fetches a dataset; credentials stay in its memory.

    Attributes:
        url: such as `s3://bucket/prefix`, `https://host/data.tar`, `file:///data/images`,
            `nfs://host/export/images` or `ipfs://CID`; "" for an upload.
        endpoint_url: of a server with S3's API; "" is AWS.
        gateway_url: of IPFS.
    """

    kind: SourceKind
    url: str = ""
    endpoint_url: str = ""
    gateway_url: str = ""
    region: str = ""
    access_key_id: str = ""
    secret_access_key: str = ""
    session_token: str = ""
    bearer_token: str = ""

    def __repr__(self) -> str:
        return f"DatasetSource({self.url!r})"


class PeerAddress(msgspec.Struct, frozen=True, kw_only=True):
    """An appliance of the same site and tenant that has a version, or is fetching it."""

    appliance_id: str
    url: str


class StagedDataset(msgspec.Struct, frozen=True, kw_only=True):
    """A version that an appliance should have, for an attempt or ahead of one.

    Attributes:
        name: of the dataset.
        number: of the version, from 1.
        digest: of the version.
        target: the path in the container, read-only; "" for a prefetch.
        peers: who may have parts of it; fetched from first.
    """

    version_id: str
    name: str
    number: int
    digest: Digest
    file_count: int
    total_bytes: int
    source: DatasetSource
    target: str = ""
    peers: list[PeerAddress] = []


class IndexOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An agent should read a source once and make the manifest of a new version."""

    version_id: str
    name: str
    number: int
    source: DatasetSource


class DatasetOrders(msgspec.Struct, frozen=True, kw_only=True):
    """What the portal wants of an appliance's cache, apart from attempts.

    `prefetch` is fetched and may be evicted again, the last one first; for the first ones of it, as
    many as `awaited`, jobs wait. `pinned` is fetched and stays; `index` is read. `peers` are the
    appliances that may fetch from this one, by their certificates' names.
    """

    prefetch: list[StagedDataset] = []
    awaited: int = 0
    pinned: list[StagedDataset] = []
    index: list[IndexOrder] = []
    peers: list[str] = []


class CopyState(StrEnum):
    """Of a version in a cache, or of an order to index one."""

    FETCHING = "fetching"
    COMPLETE = "complete"
    FAILED = "failed"


class DatasetCopy(msgspec.Struct, frozen=True, kw_only=True):
    """A version in the cache of an appliance.

    Attributes:
        cached_bytes: how much of it is there, checked.
        fetched_bytes: how much came over the line since the agent started, by any way.
        peer_bytes: how much of that came from peers.
        message: of a failure, with the next step.
    """

    version_id: str
    state: CopyState
    cached_bytes: Count = 0
    fetched_bytes: Count = 0
    peer_bytes: Count = 0
    last_used_at_ns: int | None = None
    message: Annotated[str, msgspec.Meta(max_length=1000)] = ""


class DatasetReport(msgspec.Struct, frozen=True, kw_only=True):
    """POST /agent/v1/datasets, after changes and every 30 s; answered by 204.

    `peer_url` is where peers reach this agent's cache; "" if it serves none. `bytes_per_second` is
    how fast it fetches, or did last; 0 while that is unknown.
    """

    copies: Annotated[list[DatasetCopy], msgspec.Meta(max_length=10_000)] = []
    indexing: Annotated[list[DatasetCopy], msgspec.Meta(max_length=1000)] = []
    cache_bytes: Count = 0
    cache_limit_bytes: Count = 0
    bytes_per_second: Count = 0
    peer_url: Annotated[str, msgspec.Meta(max_length=300)] = ""


class IndexResult(msgspec.Struct, frozen=True, kw_only=True):
    """POST /agent/v1/datasets/VERSION/head, once all pages are there: the version is ready."""

    head: ManifestHead
