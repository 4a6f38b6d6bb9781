"""Which portal to call, and with which API token.

`VEDETTE_URL` and `VEDETTE_TOKEN` override the file that `vedette login` writes.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from core.atomic_files import replace_file
from core.errors import UnauthenticatedError


@dataclass(frozen=True, slots=True)
class Credentials:
    """URL of the portal, an API token, and the token's ID if `vedette login` created it."""

    url: str
    token: str
    token_id: str = ""


def credentials_path() -> Path:
    """Return the file with the token, in the user's configuration directory."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "vedette" / "credentials.json"


def save_credentials(credentials: Credentials) -> Path:
    """Write the credentials, readable by this user only; return the path of the file."""
    path = credentials_path()
    replace_file(path, json.dumps(asdict(credentials)).encode())
    return path


def saved_credentials() -> Credentials | None:
    """Return the credentials in the file, if it exists."""
    try:
        return Credentials(**json.loads(credentials_path().read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise UnauthenticatedError(
            f"{credentials_path()} can't be read: {error}. Delete it and run: vedette login URL"
        ) from error


def load_credentials() -> Credentials:
    """Return the credentials from the environment or the file.

    Raises:
        UnauthenticatedError: there are none.
    """
    saved = saved_credentials()
    url = os.environ.get("VEDETTE_URL") or (saved and saved.url)
    token = os.environ.get("VEDETTE_TOKEN") or (saved and saved.token)
    if not url or not token:
        raise UnauthenticatedError("You are not signed in. Run: vedette login URL")
    return Credentials(url.rstrip("/"), token)
