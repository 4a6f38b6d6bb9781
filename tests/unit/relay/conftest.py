"""A portal for relays, and what a relay is made of, for one event loop."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from collector.buffering.undeliverable import UndeliverableLines
from core.clock import utc_now
from protocol.relays import RelayedWrite
from relay.salvage import Salvage
from relay.spool import Spool
from relay.upstream import Upstream
from tests.fixtures.relay_center import RELAY_TOKEN, Center


def write_of(appliance_id: str, number: int, *, size: int = 0) -> RelayedWrite:
    """Return a write whose body has a number."""
    return RelayedWrite(
        appliance_id=appliance_id,
        precision="ns",
        body=b"m v=%d " % number + b"x" * size,
        received_at_ns=1_000_000_000 + number,
    )


def number_of(body: bytes) -> int:
    return int(body.split()[1].removeprefix(b"v="))


@pytest.fixture
def center() -> Center:
    return Center()


@pytest.fixture
def served(center: Center) -> Iterator[Center]:
    with center.serving():
        yield center


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool(tmp_path / "spool", max_bytes=2**24, min_free_bytes=0)
    yield spool
    spool.close()


def salvage_of(upstream: Upstream, spool: Spool) -> Salvage:
    """Return what writes refused lines to a file beside the spool."""
    return Salvage(upstream, UndeliverableLines(aside_of(spool)), clock=utc_now)


def aside_of(spool: Spool) -> Path:
    return spool._folder.with_name("undeliverable.log")  # noqa: SLF001


def lines_aside(spool: Spool) -> list[str]:
    """Return the lines of the file, without the comments."""
    lines = aside_of(spool).read_text().splitlines() if aside_of(spool).exists() else []
    return [line for line in lines if not line.startswith("#")]


@asynccontextmanager
async def reaching(center: Center) -> AsyncIterator[Upstream]:
    """Yield the way to a center."""
    upstream = Upstream(center.url, token=RELAY_TOKEN, tls=None)
    try:
        yield upstream
    finally:
        await upstream.close()
