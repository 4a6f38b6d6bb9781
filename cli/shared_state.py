"""What several processes of a portal must share: keys, folders and packages.

Each process writes fingerprints of them to its row, and compares them with those of the others when
it starts. A folder is known by a file with an ID, so that two folders of the same name on two hosts
are told apart.
"""

import hmac
import logging
import socket
from collections.abc import Collection, Mapping
from datetime import datetime
from hashlib import sha256
from pathlib import Path

from sqlalchemy import make_url, select

from cli.server_hosts import PLACES
from core.db import SessionFactory, transaction
from core.errors import ConfigurationError
from core.ids import new_id
from core.leases import process_name
from core.secret_file import load_or_create_secret
from core.settings import ServerSettings, secret_key
from portal.installer.wheelhouse import read_wheelhouse
from tenants.lifecycle.server_processes import SILENT_AFTER
from tenants.models import ServerProcess

log = logging.getLogger(__name__)

MARK = ".vedette-folder"
_KEY, _PACKAGES = "secret_key", "packages"


def shared_state(settings: ServerSettings, *, has_pages: bool) -> dict[str, str]:
    """Return the fingerprints of what this process shares; none with SQLite, on a single host.

    Args:
        settings: of this process.
        has_pages: whether it serves packages to appliances.

    Raises:
        ConfigurationError: a folder can't be written.
    """
    if make_url(settings.resolved_database_url).get_backend_name() == "sqlite":
        return {}
    state = {
        _KEY: hmac.new(secret_key(settings).encode(), b"vedette processes", sha256).hexdigest(),
        "log_url": _place("log_url", settings.resolved_log_url),
        "data_url": _place("data_url", settings.resolved_data_url),
        "public_url": settings.resolved_public_url,
    }
    if has_pages:
        packages = read_wheelhouse(settings)
        state[_PACKAGES] = packages.requirements_sha256 if packages else "none"
    return {name: sha256(text.encode()).hexdigest()[:16] for name, text in state.items()}


def require_shared_state(
    sessions: SessionFactory, settings: ServerSettings, own: Mapping[str, str], *, now: datetime
) -> None:
    """Compare with the processes that run; log what only should be the same.

    Raises:
        ConfigurationError: lists what must be the same, and is not.
    """
    problems = []
    processes = _others(sessions, now=now) if own else []
    for process in processes:
        if process.url == settings.resolved_internal_url:
            log.error(
                "internal_url %s is also that of %s: neither reaches terminals and web pages of "
                "jobs through the other. Set VEDETTE_INTERNAL_URL to where others reach this host",
                process.url,
                process.holder,
            )
    for name, process in _differing(processes, own).items():
        other = f"{process.holder} ({process.url})"
        if name in PLACES:
            place = getattr(settings, f"resolved_{name}")
            problems.append(
                f"{name}: the {PLACES[name]} of {other} are not in {place} of this host. Set "
                f"VEDETTE_{name.upper()} on all hosts to one bucket, or to a folder that they share"
            )
        elif name == _KEY and not settings.secret_key:
            problems.append(
                f"secret_key: {other} has another one than {settings.data_dir / _KEY}, where this "
                f"process has generated its own. Copy it from {process.holder}, or set "
                "VEDETTE_SECRET_KEY to the same on all hosts"
            )
        elif name == _KEY:
            log.error(
                "secret_key is not that of %s: users are signed out from request to request until "
                "all processes have the same",
                other,
            )
        elif name == _PACKAGES:
            log.warning(
                "the packages for appliances are not those of %s: copy the folder wheelhouse/ from "
                "one host to all others, or agents can't be installed",
                other,
            )
        else:
            log.warning("%s is not that of %s: set the same on all hosts", name, other)
    if problems:
        raise ConfigurationError(problems, source="This process")


def _others(sessions: SessionFactory, *, now: datetime) -> list[ServerProcess]:
    """Return the other processes that run."""
    statement = select(ServerProcess).where(
        ServerProcess.holder != process_name(), ServerProcess.seen_at > now - SILENT_AFTER
    )
    with transaction(sessions) as session:
        return [process for process in session.scalars(statement) if not _has_ended(process.holder)]


def _differing(
    processes: Collection[ServerProcess], own: Mapping[str, str]
) -> dict[str, ServerProcess]:
    """Return, by name, a process whose fingerprint is another."""
    differing: dict[str, ServerProcess] = {}
    for process in processes:
        for name, fingerprint in _fingerprints(process.shared):
            if own.get(name, fingerprint) != fingerprint:
                differing.setdefault(name, process)
    return differing


def _fingerprints(text: str) -> Collection[tuple[str, str]]:
    return [(name, value) for name, _, value in (word.partition("=") for word in text.split())]


def _has_ended(holder: str) -> bool:
    """Return whether a process was one of this host, and was killed."""
    host, _, process_id = holder.rpartition(":")
    if host != socket.gethostname()[-len(host) :] or not process_id.isdecimal():
        return False
    return not Path(f"/proc/{process_id}").exists()


def _place(name: str, address: str) -> str:
    """Return what identifies a bucket or a folder on all hosts."""
    folder = address.removeprefix("file://")
    if "://" in folder:
        return address.rstrip("/")
    try:
        Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        return load_or_create_secret(Path(folder) / MARK, new_id)
    except OSError as error:
        problem = f"{name}: {folder} can't be written ({error.strerror})"
        raise ConfigurationError([problem], source="The configuration") from error
