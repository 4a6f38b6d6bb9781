"""What a line of the kernel reports: XIDs, out-of-memory kills, machine checks, links, disks.

Sources: NVIDIA's open driver (`NVRM: Xid (PCI:...)`), mm/oom_kill.c, arch/x86/kernel/cpu/mce and
drivers/edac, `netif_carrier_*` messages of network drivers, block/blk-core.c, drivers/ata, nvme and
file systems of Linux 5.10 to 6.12.
"""

import re

from protocol.lines import MAX_SUBJECT_LENGTH, LineEvent

_PATTERNS: tuple[tuple[LineEvent, re.Pattern[str]], ...] = tuple(
    (event, re.compile(pattern))
    for event, pattern in (
        (LineEvent.XID, r"NVRM: Xid \(PCI:(?P<subject>[0-9A-Fa-f:.]+)\)"),
        (
            LineEvent.OOM_KILL,
            (
                r"(?:Out of memory|Memory cgroup out of memory): Killed process "
                r"\d+ \((?P<subject>[^)]*)\)"
            ),
        ),
        (
            LineEvent.MACHINE_CHECK,
            (
                r"\bmce: \[Hardware Error\]|\[Hardware Error\]: |"
                r"\bEDAC (?P<subject>MC\d+): \d+ [CU]E\b"
            ),
        ),
        (
            LineEvent.LINK_DOWN,
            (
                r"(?:^|[ :])(?P<subject>[a-z][\w.-]*?)(?:: | )"
                r"(?:NIC Link is Down|Link is Down|[Ll]ink (?:is )?down\b|[Ll]ost carrier)"
            ),
        ),
        (
            LineEvent.LINK_UP,
            (
                r"(?:^|[ :])(?P<subject>[a-z][\w.-]*?)(?:: | )"
                r"(?:NIC Link is Up|Link is Up|[Ll]ink (?:is )?up\b|[Gg]ained carrier)"
            ),
        ),
        (
            LineEvent.DISK_ERROR,
            (
                r"(?:I/O error|critical (?:medium|target) error|Buffer I/O error)"
                r",? (?:on )?dev(?:ice)? (?P<subject>[\w-]+)"
            ),
        ),
        (
            LineEvent.DISK_ERROR,
            (
                r"^(?P<subject>ata\d+(?:\.\d+)?|nvme\d+(?:n\d+)?|sd[a-z]+): .*"
                r"(?:failed command|exception Emask|I/O \d+.*timeout|controller is down)"
            ),
        ),
        (
            LineEvent.DISK_ERROR,
            r"(?:EXT4-fs|XFS|BTRFS) error:? \((?:device )?(?P<subject>[\w-]+)",
        ),
        (
            LineEvent.DISK_ERROR,
            (
                r"(?:EXT4-fs|XFS|BTRFS)[\w ]* \((?:device )?(?P<subject>[\w-]+)\).*"
                r"(?:error|[Cc]orrupt|[Ss]hut(?:ting)? ?down)"
            ),
        ),
    )
)


def event_of(text: str) -> tuple[LineEvent, str]:
    """Return what a line of the kernel reports, and what it is about; both may be empty."""
    for event, pattern in _PATTERNS:
        match = pattern.search(text)
        if match is not None:
            subject = match.groupdict().get("subject") or ""
            return event, subject[:MAX_SUBJECT_LENGTH]
    return LineEvent.NONE, ""
