"""What lines of the kernel report, which lines are sent, and what is dropped is counted."""

from pathlib import Path

import pytest

from collector.config import load_agent_config
from collector.logs.events import event_of
from collector.logs.journal import host_line, is_wanted, line_of_entry
from collector.logs.kernel_ring import KernelRing
from collector.logs.settings import LogSettings
from collector.logs.shipping import FRAME_BYTES, FRAME_LINES, UnitRates, frames_of
from core.errors import ConfigurationError
from protocol.lines import MAX_TEXT_LENGTH, ApplianceLine, LineEvent, LogLevel


# Captured from hosts with the drivers and kernels that `collector.logs.events` names.
@pytest.mark.parametrize(
    ("text", "event", "subject"),
    [
        (
            (
                "NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen "
                "off the bus."
            ),
            LineEvent.XID,
            "0000:4e:00",
        ),
        (
            "Out of memory: Killed process 2592 (python3) total-vm:1665256kB, anon-rss:1620048kB",
            LineEvent.OOM_KILL,
            "python3",
        ),
        (
            "Memory cgroup out of memory: Killed process 911 (train.py) total-vm:9kB",
            LineEvent.OOM_KILL,
            "train.py",
        ),
        (
            "mce: [Hardware Error]: CPU 24: Machine Check: 0 Bank 7: 8c00004000010091",
            LineEvent.MACHINE_CHECK,
            "",
        ),
        (
            "EDAC MC1: 1 CE memory read error on CPU_SrcID#1_MC#0_Chan#0_DIMM#0",
            LineEvent.MACHINE_CHECK,
            "MC1",
        ),
        ("mlx5_core 0000:18:00.0 ens1f0np0: Link down", LineEvent.LINK_DOWN, "ens1f0np0"),
        ("mlx5_core 0000:18:00.0 ens1f0np0: Link up", LineEvent.LINK_UP, "ens1f0np0"),
        ("ixgbe 0000:03:00.0 eth2: NIC Link is Down", LineEvent.LINK_DOWN, "eth2"),
        (
            "e1000e 0000:00:1f.6 eno1: NIC Link is Up 1000 Mbps Full Duplex, Flow Control: None",
            LineEvent.LINK_UP,
            "eno1",
        ),
        (
            "I/O error, dev sdb, sector 1953503840 op 0x0:(READ) flags 0x80700 phys_seg 1",
            LineEvent.DISK_ERROR,
            "sdb",
        ),
        (
            "critical medium error, dev nvme0n1, sector 3907 op 0x0:(READ) flags 0x0",
            LineEvent.DISK_ERROR,
            "nvme0n1",
        ),
        ("ata1.00: failed command: READ FPDMA QUEUED", LineEvent.DISK_ERROR, "ata1.00"),
        (
            (
                "EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm ls: reading "
                "directory lblock 0"
            ),
            LineEvent.DISK_ERROR,
            "sda1",
        ),
        ("usb 1-1: new high-speed USB device number 5 using xhci_hcd", LineEvent.NONE, ""),
        ("docker0: port 1(veth0) entered forwarding state", LineEvent.NONE, ""),
    ],
)
def test_events_of_the_kernel(text: str, event: LineEvent, subject: str) -> None:
    assert event_of(text) == (event, subject)


def test_an_entry_of_the_journal_becomes_a_line() -> None:
    line = line_of_entry(
        {
            "__REALTIME_TIMESTAMP": "1772366400000001",
            "MESSAGE": [104, 105, 255],
            "PRIORITY": "4",
            "_SYSTEMD_UNIT": "docker.service",
            "_TRANSPORT": "stdout",
        }
    )
    assert line == ApplianceLine(
        at_ns=1_772_366_400_000_001_000,
        text="hi\N{REPLACEMENT CHARACTER}",
        level=LogLevel.WARNING,
        unit="docker.service",
    )


def test_a_long_line_is_cut_and_says_so() -> None:
    line = host_line(at_ns=1, text="x" * 20_000, priority=6, unit="a.service")
    assert len(line.text) == MAX_TEXT_LENGTH
    assert line.text.endswith("(20000 characters)")


@pytest.mark.parametrize(
    ("kernel", "wanted"),
    [
        ("none", set()),
        ("events", {"eth0: Link up"}),
        ("warnings", {"eth0: Link up", "bad"}),
        ("all", {"eth0: Link up", "bad", "noise"}),
    ],
)
def test_the_kernels_lines_are_selected(kernel: str, wanted: set[str]) -> None:
    settings = LogSettings(kernel=kernel)  # type: ignore[arg-type]
    lines = [
        host_line(at_ns=1, text=text, priority=priority, unit="kernel")
        for text, priority in (("eth0: Link up", 6), ("bad", 4), ("noise", 6))
    ]
    assert {line.text for line in lines if is_wanted(line, settings)} == wanted


def test_lines_above_a_units_rate_are_counted_and_events_are_sent() -> None:
    now = 0.0
    rates = UnitRates(2, lambda: now)
    noise = [ApplianceLine(at_ns=1, text="x", unit="a.service")] * 25
    xid = [ApplianceLine(at_ns=1, text="NVRM", unit="a.service", event=LineEvent.XID)]
    assert rates.admitted([*noise, *xid]) == [*noise[:20], *xid]
    assert rates.drops() == {"a.service": 5}
    assert rates.drops() == {}
    now = 1.0
    assert len(rates.admitted(noise)) == 2


def test_frames_are_bounded_in_lines_and_bytes() -> None:
    short = [ApplianceLine(at_ns=number, text="x") for number in range(FRAME_LINES + 1)]
    assert [frame.points for frame in frames_of(short)] == [FRAME_LINES, 1]
    long = [ApplianceLine(at_ns=number, text="x" * 8000) for number in range(40)]
    frames = list(frames_of(long))
    assert sum(frame.points for frame in frames) == 40
    assert max(len(frame.payload) for frame in frames) <= FRAME_BYTES + 8100
    assert list(frames_of([])) == []


def test_records_of_the_kernels_ring_are_read_from_the_cursor_on(tmp_path: Path) -> None:
    ring = tmp_path / "kmsg"
    # The file has one record, as a read of the ring returns.
    ring.write_bytes(b"4,7,5000000,-;bad news\n SUBSYSTEM=x\n")
    source = KernelRing(LogSettings(), path=ring)
    [line] = source.read(0)[:1]
    assert (line.text, line.level, line.unit) == ("bad news", LogLevel.WARNING, "kernel")
    source.close()
    restarted = KernelRing(LogSettings(), cursor=source.cursor, path=ring)
    assert restarted.read(0) == []
    restarted.close()
    other_boot = KernelRing(LogSettings(), cursor="other:7", path=ring)
    assert len(other_boot.read(0)) == 1
    other_boot.close()


def test_errors_of_the_table_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    text = 'portal_urls = ["http://x"]\n[logs]\nunits = ["docker"]\nkernal = "all"\n'
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError) as error:
        load_agent_config(path)
    assert "did you mean" in str(error.value) or "kernal" in str(error.value)
    path.write_text(text.replace("kernal", "kernel"), encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"docker\.service"):
        load_agent_config(path)
