"""The agent's lines of a real journal: across restarts and outages of the portal."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from collector.errors import PortalUnreachableError
from collector.logs.settings import LogSettings
from collector.logs.shipping import HostLogs
from collector.sending.access_points import AccessPoints
from collector.sending.portal_connection import PortalConnection
from core.clock import utc_now
from protocol.lines import LineEvent, LogLevel
from tests.fixtures.recording_portal import AGENT_TOKEN, RecordingPortal, Refusal

WRITER = Path("/lib/systemd/systemd-journal-remote")
pytestmark = pytest.mark.skipif(
    not (WRITER.exists() and shutil.which("journalctl")),
    reason="Debian packages systemd and systemd-journal-remote",
)
Write = Callable[..., None]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    folder = tmp_path / "journal"
    folder.mkdir()
    return folder


@pytest.fixture
def write(journal: Path) -> Write:
    written = 0

    def write_entries(*entries: dict[str, str]) -> None:
        nonlocal written
        text = ""
        for entry in entries:
            written += 1
            now_us = int(utc_now().timestamp() * 1e6)
            fields = {
                "__REALTIME_TIMESTAMP": str(now_us),
                "__MONOTONIC_TIMESTAMP": str(1_000_000 + written),
                "_BOOT_ID": "0123456789abcdef0123456789abcdef",
                **entry,
            }
            text += "".join(f"{name}={value}\n" for name, value in fields.items()) + "\n"
        command = [str(WRITER), "--output", str(journal / f"{written}.journal"), "-"]
        subprocess.run(command, input=text.encode(), check=True, capture_output=True)

    return write_entries


def kernel(text: str, priority: int = 3) -> dict[str, str]:
    return {"_TRANSPORT": "kernel", "PRIORITY": str(priority), "MESSAGE": text}


def unit(name: str, text: str) -> dict[str, str]:
    return {"_TRANSPORT": "stdout", "_SYSTEMD_UNIT": name, "PRIORITY": "6", "MESSAGE": text}


@pytest.fixture
def portal() -> Iterator[RecordingPortal]:
    with RecordingPortal() as portal:
        yield portal


@pytest.fixture
def connection(portal: RecordingPortal) -> Iterator[PortalConnection]:
    connection = PortalConnection(AccessPoints([portal.url]), agent_token=AGENT_TOKEN)
    yield connection
    connection.close()


@pytest.fixture
def start(tmp_path: Path, journal: Path) -> Iterator[Callable[[], HostLogs]]:
    running: list[HostLogs] = []

    def begin() -> HostLogs:
        for stopped in running:
            stopped.close()
        settings = LogSettings(journal_directory=journal, units=["docker.service"])
        logs = HostLogs(settings, tmp_path / "logs", clock=utc_now, max_age_seconds=3600)
        running[:] = [logs]
        return logs

    yield begin
    for logs in running:
        logs.close()


def texts(portal: RecordingPortal) -> list[str]:
    return [line.text for batch in portal.recording.line_batches for line in batch.lines]


def test_lines_of_kernel_and_units_arrive_once_across_restarts(
    write: Write,
    portal: RecordingPortal,
    connection: PortalConnection,
    start: Callable[[], HostLogs],
) -> None:
    write(
        kernel("NVRM: Xid (PCI:0000:17:00): 79, pid=1234, GPU has fallen off the bus."),
        kernel("nothing of note", priority=6),
        unit("docker.service", "container started"),
        unit("other.service", "not configured"),
    )
    logs = start()
    logs.read_step()
    logs.send_step(connection)
    [batch] = portal.recording.line_batches
    xid, docker = batch.lines
    assert (xid.event, xid.subject, xid.level) == (LineEvent.XID, "0000:17:00", LogLevel.ERROR)
    assert (docker.unit, docker.text) == ("docker.service", "container started")
    write(kernel("eth0: Link down", priority=6))
    logs = start()
    logs.read_step()
    logs.send_step(connection)
    assert texts(portal) == [xid.text, docker.text, "eth0: Link down"]


def test_an_outage_of_the_portal_loses_nothing_and_repeats_the_same_key(
    write: Write,
    portal: RecordingPortal,
    connection: PortalConnection,
    start: Callable[[], HostLogs],
) -> None:
    write(kernel("I/O error, dev sdb, sector 1"))
    logs = start()
    logs.read_step()
    portal.refuse_always(Refusal(503, "away"))
    with pytest.raises(PortalUnreachableError):
        logs.send_step(connection)
    logs = start()  # a restart meanwhile
    portal.refuse_always(None)
    logs.send_step(connection)
    assert texts(portal) == ["I/O error, dev sdb, sector 1"]
    assert logs.buffer.points == 0


def test_a_batch_that_the_portal_can_not_store_does_not_block_the_next(
    write: Write,
    portal: RecordingPortal,
    connection: PortalConnection,
    start: Callable[[], HostLogs],
) -> None:
    write(kernel("first"))
    logs = start()
    logs.read_step()
    portal.refuse_always(Refusal(422, "lines: invalid"))
    logs.send_step(connection)
    portal.refuse_always(None)
    write(kernel("second"))
    logs.read_step()
    logs.send_step(connection)
    assert texts(portal) == ["second"]


def test_a_journal_that_was_replaced_is_read_from_its_beginning(
    write: Write,
    journal: Path,
    portal: RecordingPortal,
    connection: PortalConnection,
    start: Callable[[], HostLogs],
) -> None:
    write(kernel("before"))
    start().read_step()
    for file in journal.iterdir():
        file.unlink()
    write(kernel("after"))
    logs = start()
    logs.read_step()
    logs.read_step()
    logs.send_step(connection)
    assert texts(portal) == ["before", "after"]
