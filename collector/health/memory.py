"""The XIDs that this appliance had, kept over a restart of the agent and forgotten by a reboot.

A restart of the agent repairs no GPU, a reboot resets all of them: `health.json` in the data folder
holds the kernel's boot id beside the XIDs. Those that are an application's fault are not kept.
"""

import logging
from pathlib import Path

import msgspec

from collector.files import replace_file
from jobqueue.executors.xids import XIDKind, xid

log = logging.getLogger(__name__)

FILE_NAME = "health.json"
BOOT_ID = "sys/kernel/random/boot_id"


class XIDRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of XID of one GPU since the boot: how often, and when last."""

    uuid: str
    index: int
    code: int
    count: int
    last_at_ns: int


class _File(msgspec.Struct, kw_only=True):
    boot_id: str
    xids: list[XIDRecord] = []


class HealthMemory:
    """Remembers XIDs. For one thread.

    Args:
        data_dir: where `health.json` is kept.
        proc: the kernel's process files, which name the boot.
    """

    def __init__(self, data_dir: Path, *, proc: Path = Path("/proc")) -> None:
        self._path = data_dir / FILE_NAME
        self._boot_id = _boot_id(proc)
        self._records = {
            (record.uuid, record.code): record for record in _read(self._path, self._boot_id)
        }
        self._is_saved = True

    @property
    def records(self) -> list[XIDRecord]:
        """Every kind of XID since the boot."""
        return list(self._records.values())

    def note(self, uuid: str, index: int, code: int, *, at_ns: int) -> None:
        """Remember an XID; the first of its kind is on disk when this returns."""
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
        """Forget all XIDs."""
        self._records.clear()
        self._is_saved = False

    def save(self) -> None:
        """Write the file when something changed; a folder that takes no writes is tried again."""
        if self._is_saved:
            return
        content = _File(boot_id=self._boot_id, xids=self.records)
        try:
            replace_file(self._path, msgspec.json.encode(content))
        except OSError as error:
            log.warning("%s can't be written: %s", self._path, error)
        else:
            self._is_saved = True


def _read(path: Path, boot_id: str) -> list[XIDRecord]:
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_File)
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("%s can't be read, so earlier XIDs are forgotten: %s", path, error)
        return []
    return kept.xids if kept.boot_id == boot_id else []


def _boot_id(proc: Path) -> str:
    try:
        return (proc / BOOT_ID).read_text(encoding="ascii").strip()
    except OSError:
        return ""
