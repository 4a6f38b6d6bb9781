"""The GPUs that this appliance is known to have, so that one that vanished is missed.

They are kept in `known_gpus.json` of the data folder: a GPU that is seen is known from then on.
`accept_present_gpus` leaves a mark that has the agent forget those that are gone, and all XIDs.
"""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from collector.files import replace_file

log = logging.getLogger(__name__)

FILE_NAME = "known_gpus.json"
MARK_NAME = "accept-gpus"


class KnownGPU(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as it was last seen; `has_nvlinks` once any of its NVLinks was up."""

    uuid: str
    index: int
    model: str = ""
    has_nvlinks: bool = False
    is_present: bool = True


def accept_present_gpus(data_dir: Path) -> list[KnownGPU]:
    """Have the agent take the GPUs that are present for all that there are, and forget all XIDs.

    It does so at its next heartbeat, or when it starts.

    Returns:
        The known GPUs that are not present: those that it will forget.

    Raises:
        OSError: the data folder can't be written.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    (data_dir / MARK_NAME).touch(mode=0o600)
    return [gpu for gpu in _read(data_dir / FILE_NAME) if not gpu.is_present]


class KnownGPUs:
    """The known GPUs of one appliance, by UUID. For one thread."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / FILE_NAME
        self._mark = data_dir / MARK_NAME
        self._gpus = {gpu.uuid: gpu for gpu in _read(self._path)}
        self._is_saved = True

    @property
    def gpus(self) -> Mapping[str, KnownGPU]:
        """The known GPUs, those that are missing included."""
        return self._gpus

    def see(self, present: Iterable[KnownGPU]) -> None:
        """Note which GPUs are present; those of them that are new are known from now on."""
        seen = {gpu.uuid: gpu for gpu in present}
        known = {
            uuid: msgspec.structs.replace(gpu, is_present=uuid in seen)
            for uuid, gpu in self._gpus.items()
        }
        for uuid, gpu in seen.items():
            before = known.get(uuid)
            has_nvlinks = gpu.has_nvlinks or (before is not None and before.has_nvlinks)
            known[uuid] = msgspec.structs.replace(gpu, has_nvlinks=has_nvlinks)
        if known != self._gpus:
            self._gpus, self._is_saved = known, False

    def forget_missing(self) -> None:
        """Take the present GPUs for all that there are, with the NVLinks that they have now."""
        self._gpus = {
            uuid: msgspec.structs.replace(gpu, has_nvlinks=False)
            for uuid, gpu in self._gpus.items()
            if gpu.is_present
        }
        self._is_saved = False

    def is_acceptance_asked(self) -> bool:
        """Return whether somebody left the mark since the last time; takes it away."""
        try:
            self._mark.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            log.warning("%s can't be removed, so it is not obeyed: %s", self._mark, error)
            return False
        return True

    def save(self) -> None:
        """Write the file when something changed; a folder that takes no writes is tried again."""
        if self._is_saved:
            return
        try:
            replace_file(self._path, msgspec.json.encode(list(self._gpus.values())))
        except OSError as error:
            log.warning("%s can't be written: %s", self._path, error)
        else:
            self._is_saved = True


def _read(path: Path) -> list[KnownGPU]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[KnownGPU])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("%s can't be read, so missing GPUs are not noticed: %s", path, error)
        return []
