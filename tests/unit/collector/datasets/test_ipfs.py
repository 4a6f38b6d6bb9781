"""Files of IPFS: known blocks are decoded, and what a gateway sends is checked."""

import random
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from collector.datasets.errors import DataError
from collector.datasets.ipfs import CID, DAG_PB, RAW, SHA2_256, IPFSSource, decode_node, parse_cid
from protocol.datasets import DatasetSource, SourceKind

# The empty folder and the empty file of UnixFS, which every node of IPFS has.
EMPTY_FOLDER = "QmUNLLsPACCz1vLxQVkXqqLX5R1X345qqfHbsf67hvA3Nn"
EMPTY_FILE = "QmbFMke1KXqnYyBBWxB74N4c5SBnJMVAiMNRcGu6x1AwQH"
# "hello world\n" as one raw block, as `ipfs add --cid-version 1` names it.
HELLO = "bafkreifjjcie6lypi6ny7amxnfftagclbuxndqonfipmb64f2km2devei4"


@pytest.mark.parametrize(
    ("cid", "block", "kind"),
    [(EMPTY_FOLDER, "0a020801", 1), (EMPTY_FILE, "0a0408021800", 2)],
)
def test_known_blocks_have_their_known_names(cid: str, block: str, kind: int) -> None:
    parsed = parse_cid(cid)
    raw = bytes.fromhex(block)
    assert parsed == CID(DAG_PB, SHA2_256, sha256(raw).digest())
    assert decode_node(parsed, raw).kind == kind


def test_a_raw_block_has_its_known_name() -> None:
    parsed = parse_cid(HELLO)
    assert parsed == CID(RAW, SHA2_256, sha256(b"hello world\n").digest())
    assert parsed.text == HELLO


@pytest.mark.parametrize(
    "text", ["", "Qm", "bafy", "zzz", "Qm" + "1" * 44, "b" + "a" * 60, "hello", "f0155ff"]
)
def test_what_is_no_cid_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_cid(text)


def varint(value: int) -> bytes:
    raw = b""
    while value >= 0x80:
        raw, value = raw + bytes([value & 0x7F | 0x80]), value >> 7
    return raw + bytes([value])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


class Gateway:
    """Blocks by CID."""

    def __init__(self) -> None:
        self.blocks: dict[str, bytes] = {}
        self.url = ""

    def add(self, block: bytes, codec: int = DAG_PB) -> CID:
        cid = CID(codec, SHA2_256, sha256(block).digest())
        self.blocks[cid.text] = block
        return cid

    def add_node(self, data: bytes, links: list[tuple[str, CID]]) -> CID:
        raw = [bytes([1]) + varint(own.codec) + bytes([0x12, 32]) + own.digest for _, own in links]
        encoded = [
            field(2, field(1, cid) + field(2, name.encode()) + field(3, 1))
            for (name, _), cid in zip(links, raw, strict=True)
        ]
        return self.add(b"".join(encoded) + field(1, data))

    def add_file(self, content: bytes, block_bytes: int) -> CID:
        blocks = [
            content[begin : begin + block_bytes] for begin in range(0, len(content), block_bytes)
        ]
        data = field(1, 2) + field(3, len(content))
        data += b"".join(field(4, len(block)) for block in blocks)
        return self.add_node(data, [("", self.add(block, RAW)) for block in blocks])

    def add_folder(self, entries: dict[str, CID]) -> CID:
        return self.add_node(field(1, 1), sorted(entries.items()))

    def add_sharded(self, entries: dict[str, CID]) -> CID:
        """A folder spread by a hash: names have two digits before, and inner nodes only these."""
        inner = self.add_node(
            field(1, 5) + field(2, b"\xff") + field(5, 0x22) + field(6, 256),
            [(f"0A{name}", cid) for name, cid in sorted(entries.items())],
        )
        data = field(1, 5) + field(2, b"\x01") + field(5, 0x22) + field(6, 256)
        return self.add_node(data, [("F1", inner)])


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    state = Gateway()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            block = state.blocks.get(self.path.removeprefix("/ipfs/").partition("?")[0])
            self.send_response(200 if block is not None else 404)
            self.send_header("Content-Length", str(len(block or b"")))
            self.end_headers()
            self.wfile.write(block or b"")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its base's name
            """Nothing is printed."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        state.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield state
        server.shutdown()


def source(gateway: Gateway, cid: CID, path: str = "") -> IPFSSource:
    url = f"ipfs://{cid.text}{path}"
    return IPFSSource(DatasetSource(kind=SourceKind.IPFS, url=url, gateway_url=gateway.url))


CONTENT = random.Random(7).randbytes(100_000)  # noqa: S311 - repeatable


def test_a_folder_is_listed_and_its_files_read_by_ranges(gateway: Gateway) -> None:
    inner = gateway.add_folder({"b": gateway.add_file(CONTENT, 9_000)})
    sharded = gateway.add_sharded({"c": gateway.add(b"raw", RAW)})
    root = gateway.add_folder({"a": inner, "a-": gateway.add(b"x", RAW), "s": sharded})
    files = source(gateway, root)
    assert [(file.path, file.size_bytes) for file in files.files()] == [
        ("a-", 1),
        ("a/b", 100_000),
        ("s/c", 3),
    ]
    assert bytes(files.read("a/b", 8_990, 50_000)) == CONTENT[8_990:58_990]
    assert bytes(files.read("s/c", 0, 3)) == b"raw"
    below = source(gateway, root, "/a")
    assert [file.path for file in below.files()] == ["b"]
    assert bytes(below.read("b", 0, 10)) == CONTENT[:10]


def test_a_block_with_another_hash_is_refused(gateway: Gateway) -> None:
    cid = gateway.add(b"right", RAW)
    gateway.blocks[cid.text] = b"wrong"
    with pytest.raises(DataError, match="sent another block"):
        source(gateway, cid).read("data", 0, 5)


def test_a_missing_block_and_a_missing_name_say_so(gateway: Gateway) -> None:
    root = gateway.add_folder({"a": gateway.add(b"x", RAW)})
    with pytest.raises(DataError, match="has no 'b'"):
        list(source(gateway, root, "/b").files())
    del gateway.blocks[root.text]
    with pytest.raises(DataError, match=r"not there \(404\)"):
        list(source(gateway, root).files())


def test_a_damaged_block_is_an_error_with_words(gateway: Gateway) -> None:
    for block in (b"\xff\xff", b"\x0a\x05ab", field(1, field(1, 9)), b""):
        with pytest.raises(DataError, match="can't be read"):
            list(source(gateway, gateway.add(block)).files())
