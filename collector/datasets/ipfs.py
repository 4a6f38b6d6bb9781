"""Files of IPFS through a gateway that is not trusted: each block is checked against its CID.

Source: https://specs.ipfs.tech/http-gateways/trustless-gateway/ (blocks by `?format=raw`),
https://ipld.io/specs/codecs/dag-pb/spec/, https://specs.ipfs.tech/unixfs/
"""

import base64
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from urllib.parse import urlsplit

import urllib3

from collector.datasets.errors import ContentError, DataError
from collector.datasets.pool import Pool
from collector.datasets.sources import (
    CONNECT_SECONDS,
    TIMEOUT_SECONDS,
    SourceFile,
    http_error,
    reading,
)
from collector.sending.http import HTTPClient
from collector.tls import TLSContexts
from protocol.datasets import MAX_PATH_LENGTH, DatasetSource

DEFAULT_GATEWAY = "https://trustless-gateway.link"
MAX_BLOCK_BYTES = 2 * 1024**2 + 64 * 1024
"""IPFS transfers blocks of up to 2 MiB."""
RAW, DAG_PB = 0x55, 0x70
SHA2_256, IDENTITY, SHA2_256_BYTES = 0x12, 0x00, 32
MAX_DEPTH = 64
CACHED_NODES = 256
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_RAW_NODE, _DIRECTORY, _FILE, _SHARDED = 0, 1, 2, 5
_OK = 200


@dataclass(frozen=True, slots=True)
class CID:
    """The name of a block: how it is encoded, and its hash."""

    codec: int
    hash_code: int
    digest: bytes

    @property
    def text(self) -> str:
        """As version 1 in base32, which every gateway reads."""
        raw = b"\x01" + _varint(self.codec) + _varint(self.hash_code)
        raw += _varint(len(self.digest)) + self.digest
        return "b" + base64.b32encode(raw).decode().rstrip("=").lower()


@dataclass(frozen=True, slots=True)
class Node:
    """A decoded block: a piece of a file, or a folder."""

    kind: int
    content: bytes = b""
    links: list[tuple[str, CID]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    fanout: int = 0

    @property
    def size_bytes(self) -> int:
        """The size of the file from here on."""
        return len(self.content) + sum(self.sizes)


def parse_cid(text: str) -> CID:
    """Return the CID in a text, of version 0 or 1.

    Raises:
        ValueError: it is none, or has a hash or codec that is not supported.
    """
    if text.startswith("Qm"):
        return _cid_of(_base58(text), version=0)
    if text.startswith("z"):
        return _cid_of(_base58(text[1:]))
    if text.startswith(("b", "B")):
        body = text[1:].upper()
        return _cid_of(base64.b32decode(body + "=" * (-len(body) % 8)))
    if text.startswith("f"):
        return _cid_of(bytes.fromhex(text[1:]))
    raise ValueError(f"{text[:100]!r} is not a CID in base32 or base58")


def decode_node(cid: CID, block: bytes) -> Node:
    """Return what a block of UnixFS has.

    Raises:
        ValueError: it is damaged, or of another kind.
    """
    if cid.codec == RAW:
        return Node(_RAW_NODE, content=block)
    links, data = [], b""
    for number, value in _fields(block):
        if number == 2 and isinstance(value, bytes):  # noqa: PLR2004 - of the format
            parts = dict(_fields(value))
            name, link = parts.get(2, b""), parts.get(1, b"")
            if not isinstance(name, bytes) or not isinstance(link, bytes):
                raise ValueError("a link is damaged")
            links.append((name.decode(), _cid_of(link)))
        elif number == 1 and isinstance(value, bytes):  # PBNode.Data
            data = value
    return _unixfs(data, links)


class IPFSSource:
    """A file or folder by its CID: `ipfs://CID` or `ipfs://CID/folder`."""

    def __init__(self, source: DatasetSource, tls: TLSContexts | None = None) -> None:
        parts = urlsplit(source.url)
        self._url = source.url
        self._gateway = (source.gateway_url or DEFAULT_GATEWAY).rstrip("/")
        self._headers = {"Accept": "application/vnd.ipld.raw"}
        if source.bearer_token:
            self._headers["Authorization"] = f"Bearer {source.bearer_token}"
        self._pool = Pool(lambda: HTTPClient(tls))
        self._lock = threading.Lock()
        self._nodes: OrderedDict[CID, Node] = OrderedDict()
        try:
            self._root = parse_cid(parts.netloc)
        except ValueError as error:
            raise DataError(f"{source.url}: {error}. Correct the dataset's address.") from error
        self._folder = [name for name in parts.path.split("/") if name]

    def files(self) -> Iterator[SourceFile]:
        """Yield the files below the CID."""
        start = self._find(self._folder)
        if self._node(start).kind in {_RAW_NODE, _FILE}:
            name = self._folder[-1] if self._folder else "data"
            yield SourceFile(name, self._node(start).size_bytes, 0)
        else:
            yield from self._below(start, "", 0)

    def read(self, path: str, offset: int, size_bytes: int) -> memoryview:
        """Return a range of a file, from the blocks that have it."""
        start = self._find(self._folder)
        if self._node(start).kind not in {_RAW_NODE, _FILE}:
            start = self._find([*self._folder, *path.split("/")])
        content = b"".join(self._range(start, offset, offset + size_bytes, 0))
        if len(content) != size_bytes:
            raise DataError(f"{self._url}/{path} is shorter than its manifest says.")
        return memoryview(content)

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    def _below(self, folder: CID, prefix: str, depth: int) -> Iterator[SourceFile]:
        if depth > MAX_DEPTH or len(prefix) > MAX_PATH_LENGTH:
            raise DataError(f"{self._url} has folders below {prefix[:100]!r} that are too deep.")
        entries = [(name, link, self._node(link)) for name, link in self._entries(folder)]
        # As paths order: a folder counts with the "/" after its name.
        ordered = sorted(
            (
                (name + "/" if node.kind in {_DIRECTORY, _SHARDED} else name, link, node)
                for name, link, node in entries
            ),
            key=lambda entry: entry[0],
        )
        for name, link, node in ordered:
            if name.endswith("/"):
                yield from self._below(link, prefix + name, depth + 1)
            else:
                yield SourceFile(prefix + name, node.size_bytes, 0)

    def _entries(self, folder: CID, depth: int = 0) -> Iterator[tuple[str, CID]]:
        """Yield the names of a folder, also of one that is spread over blocks by a hash."""
        node = self._node(folder)
        if depth > MAX_DEPTH:
            raise DataError(f"{self._url} has a folder whose blocks are too deep.")
        if node.kind == _DIRECTORY:
            yield from node.links
        elif node.kind == _SHARDED:
            width = len(f"{node.fanout - 1:X}")
            for name, link in node.links:
                if len(name) > width:
                    yield name[width:], link
                else:
                    yield from self._entries(link, depth + 1)
        else:
            raise DataError(f"{self._url} has a file where a folder should be.")

    def _find(self, names: list[str]) -> CID:
        place = self._root
        for name in names:
            place = next((link for own, link in self._entries(place) if own == name), None) or (
                self._missing(name)
            )
        return place

    def _missing(self, name: str) -> CID:
        raise DataError(f"{self._url} has no {name!r}. Correct the dataset's address.")

    def _range(self, start: CID, begin: int, end: int, depth: int) -> Iterator[bytes]:
        if depth > MAX_DEPTH:
            raise DataError(f"{self._url} has a file whose blocks are too deep.")
        node = self._node(start)
        if node.kind not in {_RAW_NODE, _FILE}:
            raise DataError(f"{self._url} has a folder where a file should be.")
        if begin < len(node.content):
            yield node.content[begin:end]
        position = len(node.content)
        for (_, link), size_bytes in zip(node.links, node.sizes, strict=False):
            if position < end and begin < position + size_bytes:
                inner = max(0, begin - position), min(size_bytes, end - position)
                yield from self._range(link, *inner, depth + 1)
            position += size_bytes

    def _node(self, cid: CID) -> Node:
        with self._lock:
            if (cached := self._nodes.get(cid)) is not None:
                self._nodes.move_to_end(cid)
                return cached
        try:
            node = decode_node(cid, self._block(cid))
        except ValueError as error:
            raise DataError(f"{self._url}: block {cid.text} can't be read: {error}.") from error
        with self._lock:
            self._nodes[cid] = node
            while len(self._nodes) > CACHED_NODES:
                self._nodes.popitem(last=False)
        return node

    def _block(self, cid: CID) -> bytes:
        if cid.hash_code == IDENTITY:
            return cid.digest
        address = f"{self._gateway}/ipfs/{cid.text}"
        with self._pool.borrowed() as client, reading(address):  # noqa: SIM117 - it uses the first
            with client.pool_for(address).request(
                "GET",
                f"{address}?format=raw",
                headers=self._headers,
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=TIMEOUT_SECONDS),
                retries=urllib3.Retry(0, redirect=5),
                preload_content=False,
            ) as response:
                if response.status != _OK:
                    raise http_error(response.status, address)
                block: bytes = response.read(MAX_BLOCK_BYTES + 1)
        if len(block) > MAX_BLOCK_BYTES or sha256(block).digest() != cid.digest:
            raise ContentError(
                f"The gateway {self._gateway} sent another block than {cid.text}. Set another "
                "gateway."
            )
        return block


def _unixfs(data: bytes, links: list[tuple[str, CID]]) -> Node:
    kind, content, sizes, fanout = -1, b"", [], 0
    for number, value in _fields(data):
        match number, value:
            case 1, int():
                kind = value
            case 2, bytes():
                content = value
            case 4, int():
                sizes.append(value)
            case 6, int():
                fanout = value
            case _:
                pass
    if kind not in {_RAW_NODE, _DIRECTORY, _FILE, _SHARDED}:
        raise ValueError("it is neither a file nor a folder of UnixFS")
    if kind in {_RAW_NODE, _FILE} and len(sizes) != len(links):
        raise ValueError("the sizes of its blocks are missing")
    if kind == _SHARDED and not 1 < fanout <= 1024:  # noqa: PLR2004 - of the format
        raise ValueError("its fanout is wrong")
    # A folder has no content of its own: that of a sharded one is a bit field.
    return Node(kind, content if kind in {_RAW_NODE, _FILE} else b"", links, sizes, fanout)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a protobuf message."""
    position = 0
    while position < len(message):
        key, position = _read_varint(message, position)
        match key & 7:
            case 0:
                value, position = _read_varint(message, position)
                yield key >> 3, value
            case 2:
                length, position = _read_varint(message, position)
                if position + length > len(message):
                    raise ValueError("it is cut off")
                yield key >> 3, message[position : position + length]
                position += length
            case 1:
                position += 8
            case 5:
                position += 4
            case _:
                raise ValueError("it has a field of an unknown type")


def _cid_of(raw: bytes, version: int = 1) -> CID:
    position, codec = 0, DAG_PB
    if raw[:2] != bytes([SHA2_256, SHA2_256_BYTES]) and version:
        number, position = _read_varint(raw, 0)
        if number != 1:
            raise ValueError("it is a CID of an unknown version")
        codec, position = _read_varint(raw, position)
    hash_code, position = _read_varint(raw, position)
    length, position = _read_varint(raw, position)
    digest = raw[position:]
    if codec not in {RAW, DAG_PB}:
        raise ValueError(f"its codec {codec:#x} is not supported: only raw and dag-pb are")
    if len(digest) != length or (
        (hash_code, length) != (SHA2_256, SHA2_256_BYTES) and (hash_code != IDENTITY)
    ):
        raise ValueError("its hash is not supported: only SHA-256 is")
    return CID(codec, hash_code, digest)


def _read_varint(raw: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(raw) and shift < 64:  # noqa: PLR2004 - of the format
        byte = raw[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if not byte & 0x80:
            return value, position
    raise ValueError("it is cut off")


def _varint(value: int) -> bytes:
    raw = bytearray()
    while value >= 0x80:  # noqa: PLR2004 - of the format
        raw.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*raw, value])


def _base58(text: str) -> bytes:
    value = 0
    for character in text:
        value = value * 58 + _BASE58.index(character)
    raw = value.to_bytes(-(-value.bit_length() // 8), "big")
    return b"\0" * (len(text) - len(text.lstrip("1"))) + raw
