"""Who this appliance is to its portal: got at enrolment, kept in the data folder, secret."""

import tempfile
from pathlib import Path

import msgspec

from collector.errors import EnrolmentError
from collector.files import replace_file

FILE_NAME = "identity.json"


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What the portal gave at enrolment; `agent_token` authenticates every request."""

    appliance_id: str
    tenant_id: str
    agent_token: str


def load_identity(data_dir: Path) -> Identity | None:
    """Return the kept identity, or None where this appliance was never enrolled.

    Raises:
        EnrolmentError: the file is there and can't be used.
    """
    path = data_dir / FILE_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=Identity)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise EnrolmentError(
            f"{path} can't be used: {error}. Remove it and enrol again."
        ) from error


def refuse_unwritable(data_dir: Path) -> None:
    """Refuse a data folder in which no identity could be kept; make it where there is none.

    Raises:
        EnrolmentError: the data folder can't be written.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=data_dir):
            pass
    except OSError as error:
        raise EnrolmentError(
            f"The data folder {data_dir} can't be written: {error.strerror}. Run this as the "
            "agent's user, or name another folder by --data-dir."
        ) from error


def save_identity(data_dir: Path, identity: Identity) -> Path:
    """Keep the identity where only the agent's user can read it; return the file.

    Raises:
        EnrolmentError: the data folder can't be written.
    """
    path = data_dir / FILE_NAME
    try:
        replace_file(path, msgspec.json.encode(identity), mode=0o600)
    except OSError as error:
        raise EnrolmentError(f"{path} can't be written: {error.strerror}") from error
    return path
