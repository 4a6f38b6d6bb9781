"""What the agent remembers of attempts over a restart: the portal's last word, and how each ended.

Without it, an attempt that ended while the portal was away could be started a second time.
"""

import logging
from pathlib import Path

import msgspec

from collector.files import replace_file
from jobqueue.executors.base import AttemptObservation
from jobqueue.executors.wire import DesiredState

log = logging.getLogger(__name__)


class Ledger(msgspec.Struct):
    """Attempts by id, and the desired state that was heard last (None: never)."""

    desired: DesiredState | None = None
    remembered: dict[str, AttemptObservation] = {}


def load_ledger(path: Path) -> Ledger:
    """Return the kept ledger, or an empty one."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Ledger)
    except FileNotFoundError:
        return Ledger()
    except (OSError, msgspec.MsgspecError) as error:
        log.error("%s can't be read, attempts are learnt from the executor: %s", path, error)  # noqa: TRY400 - the sentence says it all
        return Ledger()


def save_ledger(path: Path, ledger: Ledger) -> None:
    """Keep the ledger; a disk that takes no writes is told of and does not stop the jobs."""
    try:
        replace_file(path, msgspec.json.encode(ledger))
    except OSError as error:
        log.warning("%s can't be written: %s", path, error)
