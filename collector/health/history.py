"""The history of XIDs since the boot, which survives a restart of the agent.

A reboot resets all GPUs, a restart of the agent does not: `health.json` in the data folder has the
kernel's boot id beside the XIDs. Those that are caused by applications are not recorded.
"""

from pathlib import Path

import msgspec

from collector.data_dir import load_json, save_json
from protocol.xids import XIDKind, xid

FILE_NAME = "health.json"
BOOT_ID = "sys/kernel/random/boot_id"


class XIDRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One XID code of one GPU since the boot: its count, and the last time."""

    uuid: str
    index: int
    code: int
    count: int
    last_at_ns: int


class _File(msgspec.Struct, kw_only=True):
    boot_id: str
    xids: list[XIDRecord] = []


class HealthHistory:
    """Records XIDs. For one thread.

    Args:
        data_dir: folder of `health.json`.
        proc: the kernel's process files, which have the boot id.
    """

    def __init__(self, data_dir: Path, *, proc: Path = Path("/proc")) -> None:
        self._path = data_dir / FILE_NAME
        self._boot_id = _boot_id(proc)
        stored = load_json(self._path, _File)
        xids = stored.xids if stored is not None and stored.boot_id == self._boot_id else []
        self._records = {(record.uuid, record.code): record for record in xids}
        self._is_saved = True

    @property
    def records(self) -> list[XIDRecord]:
        """All XIDs since the boot."""
        return list(self._records.values())

    def record_xid(self, uuid: str, index: int, code: int, *, at_ns: int) -> None:
        """Record an XID; the first with its code is on disk on return."""
        if xid(code).kind is XIDKind.APPLICATION:
            return
        before = self._records.get((uuid, code))
        self._records[uuid, code] = XIDRecord(
            uuid=uuid,
            index=index,
            code=code,
            count=before.count + 1 if before else 1,
            last_at_ns=max(at_ns, before.last_at_ns) if before else at_ns,
        )
        self._is_saved = False
        if before is None:
            self.save()

    def clear(self) -> None:
        """Delete all XIDs."""
        self._records.clear()
        self._is_saved = False

    def save(self) -> None:
        """Write the file if something changed; the next call retries a failed write."""
        if not self._is_saved:
            content = _File(boot_id=self._boot_id, xids=self.records)
            self._is_saved = save_json(self._path, content)


def _boot_id(proc: Path) -> str:
    try:
        return (proc / BOOT_ID).read_text(encoding="ascii").strip()
    except OSError:
        return ""
