"""Buckets, web servers and folders as sources of datasets: read, indexed, and what goes wrong."""

import os
import random
import socket
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import obstore
import pytest
from obstore.store import S3Store

from collector.datasets.errors import DataError, TemporaryDataError
from collector.datasets.settings import DatasetSettings
from collector.datasets.sources import FolderSource, HTTPSSource, S3Source, open_source
from protocol.attempts import DesiredState
from protocol.datasets import (
    PART_BYTES,
    CopyState,
    DatasetOrders,
    DatasetSource,
    IndexOrder,
    SourceKind,
)
from tests.fixtures.data_portal import DataPortal, write_files
from tests.fixtures.polling import eventually
from tests.fixtures.s3 import new_bucket
from tests.servers import free_port
from tests.unit.collector.datasets.conftest import Appliance
from tests.unit.collector.datasets.test_staging import content_of, small_files

MIB = 2**20
NIGHTLY_LARGE = random.Random(5).randbytes(PART_BYTES + 5 * MIB)  # noqa: S311 - repeatable


def bucket_with(s3_endpoint: str, files: dict[str, bytes]) -> DatasetSource:
    bucket = new_bucket(s3_endpoint)
    store = S3Store(
        bucket.name,
        endpoint=s3_endpoint,
        region="us-east-1",
        access_key_id="key",
        secret_access_key="secret",
        client_options={"allow_http": True},
    )
    for path, content in files.items():
        obstore.put(store, f"sets/{path}", content)
    return DatasetSource(
        kind=SourceKind.S3,
        url=f"s3://{bucket.name}/sets",
        endpoint_url=s3_endpoint,
        access_key_id="key",
        secret_access_key="secret",
    )


def index(appliance: Appliance, source: DatasetSource, version_id: str = "v") -> CopyState:
    order = IndexOrder(version_id=version_id, name="images", number=1, source=source)
    appliance.stager.set_desired(DesiredState(generation=1, datasets=DatasetOrders(index=[order])))

    def state() -> CopyState | None:
        indexing = appliance.stager.report().indexing
        return indexing[0].state if indexing else None

    eventually(lambda: state() in {CopyState.COMPLETE, CopyState.FAILED}, what="the index")
    final = state()
    assert final is not None
    return final


def error_of(appliance: Appliance) -> str:
    return appliance.stager.report().indexing[0].message


def test_a_bucket_is_indexed_once_and_fetched_by_another_appliance(
    make_appliance: Callable[..., Appliance], portal: DataPortal, s3_endpoint: str
) -> None:
    files = {**small_files(20), "large.bin": NIGHTLY_LARGE}
    source = bucket_with(s3_endpoint, files)
    first, second = make_appliance("dgx-1"), make_appliance("dgx-2")
    assert index(first, source) is CopyState.COMPLETE
    dataset = portal.staged("v", source=source)
    (own_tree,) = first.stage(dataset)
    (tree,) = second.stage(dataset)
    assert content_of(own_tree) == content_of(tree) == files


def test_a_folder_is_indexed_with_odd_names_and_executable_files(
    appliance: Appliance, portal: DataPortal, tmp_path: Path
) -> None:
    files = {
        "ä ö/naïve.txt": b"a",
        "a-b": b"b",
        "a/x": b"c",
        "100%/#1?.jpg": b"d",
        "x" * 255: b"e",
        "empty": b"",
        "run.sh": b"#!/bin/sh\n",
    }
    write_files(tmp_path / "source", files)
    (tmp_path / "source" / "run.sh").chmod(0o755)
    (tmp_path / "source" / "link").symlink_to("a-b")
    source = DatasetSource(kind=SourceKind.FILE, url=f"file://{tmp_path}/source")
    assert index(appliance, source) is CopyState.COMPLETE
    (tree,) = appliance.stage(portal.staged("v", source=source))
    assert content_of(tree) == {**files, "link": b"b"}
    assert os.access(tree / "run.sh", os.X_OK)
    assert (tree / "run.sh").stat().st_mode & 0o777 == 0o555
    assert (tree / "a-b").stat().st_mode & 0o777 == 0o444


def outside(folder: Path) -> None:
    (folder / "secret").symlink_to("/etc/hostname")


def dangling(folder: Path) -> None:
    (folder / "gone").symlink_to("nowhere")


def a_socket(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "s"))


def folder_link(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "loop").symlink_to("sub")


def newline(folder: Path) -> None:
    (folder / "a\nb").write_bytes(b"x")


def not_utf8(folder: Path) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff")).write_bytes(b"x")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (outside, "leads out of"),
        (dangling, "is not there"),
        (a_socket, "no regular file"),
        (folder_link, "link to a folder"),
        (newline, "Rename it"),
        (not_utf8, "Rename it"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_a_dataset_cannot_have_is_named_and_nothing_is_left_out(
    appliance: Appliance, tmp_path: Path, spoil: Callable[[Path], None], words: str
) -> None:
    folder = tmp_path / "s"
    write_files(folder, {"a": b"a"})
    spoil(folder)
    source = DatasetSource(kind=SourceKind.FILE, url=f"file://{folder}")
    assert index(appliance, source) is CopyState.FAILED
    assert words in error_of(appliance)


def test_a_link_that_changes_after_the_listing_does_not_lead_out(tmp_path: Path) -> None:
    write_files(tmp_path / "s", {"a": b"a", "b": b"b"})
    source = FolderSource("file://s", tmp_path / "s")
    (tmp_path / "s" / "a").unlink()
    (tmp_path / "s" / "a").symlink_to("/etc/hostname")
    with pytest.raises(DataError, match="leads out"):
        source.read("a", 0, 1)


def test_a_bucket_that_denies_access_and_one_that_is_missing_say_so(s3_endpoint: str) -> None:
    source = DatasetSource(
        kind=SourceKind.S3, url="s3://no-such-bucket/a", endpoint_url=s3_endpoint
    )
    with pytest.raises(DataError, match=r"not there \(404\)"):
        list(S3Source(source).files())


class FaultyServer:
    """A web server with one file, which answers with a status, in place of the file."""

    def __init__(self, content: bytes) -> None:
        self.content, self.status, self.body = content, 0, b""
        self.sent_bytes = 0


@pytest.fixture
def web() -> Iterator[tuple[str, FaultyServer]]:
    state = FaultyServer(random.Random(6).randbytes(9 * MIB))  # noqa: S311 - repeatable

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if state.status:
                self.answer(state.status, state.body)
                return
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            content = state.content[int(first) : int(last) + 1]
            state.sent_bytes += len(content)
            self.answer(206, content, f"bytes {first}-{last}/{len(state.content)}")

        def answer(self, status: int, body: bytes, content_range: str = "") -> None:
            self.send_response(status)
            if content_range:
                self.send_header("Content-Range", content_range)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its base's name
            """Nothing is printed."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/sets/data.tar?token=abc", state
        server.shutdown()


def test_a_file_of_a_web_server_is_read_by_ranges(
    make_appliance: Callable[..., Appliance], portal: DataPortal, web: tuple[str, FaultyServer]
) -> None:
    source = DatasetSource(kind=SourceKind.HTTPS, url=web[0])
    assert index(make_appliance("dgx-1"), source) is CopyState.COMPLETE
    (tree,) = make_appliance("dgx-2").stage(portal.staged("v", source=source))
    assert content_of(tree) == {"data.tar": web[1].content}


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (403, b"", r"denies access \(403\)\. Renew the credentials"),
        (404, b"", r"not there \(404\)\. Put it back"),
        (503, b"", "answered 503"),
    ],
)
def test_each_answer_of_a_web_server_has_its_next_step_without_the_secret(
    web: tuple[str, FaultyServer], status: int, body: bytes, words: str
) -> None:
    url, state = web
    state.status, state.body = status, body
    with pytest.raises(DataError, match=words) as caught:
        list(HTTPSSource(DatasetSource(kind=SourceKind.HTTPS, url=url)).files())
    assert "token=abc" not in str(caught.value)


S3_ERROR = "<Error><Code>{}</Code><Message>the test says so</Message></Error>"


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (400, "ExpiredToken", "have expired or are wrong"),
        (403, "InvalidAccessKeyId", "have expired or are wrong"),
        (403, "AccessDenied", r"access is denied \(403\)"),
        (404, "NoSuchKey", r"not there \(404\)"),
    ],
)
def test_each_error_of_a_bucket_has_its_next_step(
    web: tuple[str, FaultyServer], status: int, code: str, words: str
) -> None:
    url, state = web
    state.status, state.body = status, S3_ERROR.format(code).encode()
    source = S3Source(
        DatasetSource(
            kind=SourceKind.S3,
            url="s3://bucket/sets",
            endpoint_url=url.partition("/sets")[0],
            access_key_id="key",
            secret_access_key="secret",
        )
    )
    with pytest.raises(DataError, match=words):
        source.read("a", 0, 10)
    with pytest.raises(DataError):
        list(source.files())


def test_a_bucket_that_does_not_answer_has_its_cause_alone() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    source = S3Source(DatasetSource(kind=SourceKind.S3, url="s3://bucket/a", endpoint_url=url))
    with pytest.raises(TemporaryDataError) as caught:
        list(source.files())
    assert str(caught.value) == "s3://bucket/a can't be listed: Connection refused"


def test_a_source_that_changed_fails_the_job_with_words_and_the_rest_goes_on(
    make_appliance: Callable[..., Appliance], portal: DataPortal, tmp_path: Path
) -> None:
    write_files(tmp_path / "s", {"a": b"before"})
    source = DatasetSource(kind=SourceKind.FILE, url=f"file://{tmp_path}/s")
    first, second = make_appliance("dgx-1"), make_appliance("dgx-2")
    assert index(first, source) is CopyState.COMPLETE
    write_files(tmp_path / "s", {"a": b"after!"})
    with pytest.raises(DataError, match=r"source has changed\. Make a new version"):
        second.stage(portal.staged("v", source=source))
    second.stage(portal.add("other", small_files(3)), attempt_id="b")


def test_a_vanished_file_fails_the_job_with_words(
    make_appliance: Callable[..., Appliance], portal: DataPortal, tmp_path: Path
) -> None:
    write_files(tmp_path / "s", {"a": b"before"})
    source = DatasetSource(kind=SourceKind.FILE, url=f"file://{tmp_path}/s")
    first, second = make_appliance("dgx-1"), make_appliance("dgx-2")
    assert index(first, source) is CopyState.COMPLETE
    (tmp_path / "s" / "a").unlink()
    with pytest.raises(DataError, match=r"is not there\. Put it back"):
        second.stage(portal.staged("v", source=source))


def test_a_source_that_does_not_answer_is_tried_for_a_while_and_shown(
    make_appliance: Callable[..., Appliance], portal: DataPortal
) -> None:
    settings = DatasetSettings(cache_max_bytes=2**30, min_free_bytes=0, retry_seconds=0.1)
    appliance = make_appliance("dgx-1", settings=settings)
    dataset = portal.add("images", small_files(3))
    portal.fault = lambda path: 503 if "/parts/" in path else None
    with pytest.raises(DataError, match="Check the network"):
        appliance.stage(dataset)


def test_an_index_goes_on_after_a_restart_without_reading_anew(
    appliance: Appliance, portal: DataPortal, web: tuple[str, FaultyServer]
) -> None:
    source = DatasetSource(kind=SourceKind.HTTPS, url=web[0])
    portal.fault = lambda path: 503 if "/pages/" in path else None
    order = IndexOrder(version_id="v", name="images", number=1, source=source)
    desired = DesiredState(generation=1, datasets=DatasetOrders(index=[order]))
    appliance.stager.set_desired(desired)
    place = appliance.folder / "datasets/versions/v/files/data.tar"
    eventually(place.exists, what="the file")
    appliance.restart()
    portal.fault = lambda _: None
    sent_bytes = web[1].sent_bytes
    assert index(appliance, source) is CopyState.COMPLETE
    assert web[1].sent_bytes - sent_bytes <= 1


def test_a_link_on_the_way_to_a_folder_leads_nowhere(tmp_path: Path) -> None:
    """A job that may write to its data root puts a link there, and adds it as a dataset."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("x")
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "link").symlink_to(tmp_path / "secret")
    for path in ("acme/link", "acme/link/key", "acme/../acme/link"):
        source = DatasetSource(kind=SourceKind.FILE, url=f"file://{tmp_path}/{path}")
        with pytest.raises(DataError, match="goes through one"):
            open_source(source, mounts=tmp_path)
    source = DatasetSource(kind=SourceKind.FILE, url=f"file://{tmp_path}/secret/")
    assert [file.path for file in open_source(source, mounts=tmp_path).files()] == ["key"]
