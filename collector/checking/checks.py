"""What `vedette agent check` looks at: rights and room here, then the connections.

Each check says one thing, and what to do about it where it is not in order. None changes anything
on the appliance or the portal.
"""

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from collector.checking.certificate_checks import check_certificate
from collector.checking.connection_checks import check_connections
from collector.checking.findings import Finding, Verdict
from collector.config import AgentConfig
from collector.errors import EnrolmentError
from collector.identity import FILE_NAME, Identity, load_identity
from core.clock import Clock
from core.units import format_value

OTHERS_BITS = 0o077


def check_appliance(config: AgentConfig, *, clock: Clock) -> Iterator[Finding]:
    """Yield what is found here and at the portal, one finding after the other."""
    yield from check_rights(config)
    identity = None
    if config.influxdb is None:
        identity, finding = _identity(config.data_dir)
        yield finding
    yield from check_certificate(config, clock=clock)
    yield from check_connections(config, identity, clock=clock)


def check_rights(config: AgentConfig) -> Iterator[Finding]:
    """Yield whether this user can write the data folder, has room there, and can reach Docker."""
    yield _data_dir(config.data_dir)
    if config.data_dir.is_dir():
        yield _room(config)
    if config.executor in {"auto", "docker"}:
        yield _docker(config)


def _identity(data_dir: Path) -> tuple[Identity | None, Finding]:
    what, path = "identity", data_dir / FILE_NAME
    try:
        identity = load_identity(data_dir)
        mode = path.stat().st_mode if identity is not None else 0
    except (EnrolmentError, OSError) as error:
        return None, Finding(
            Verdict.FAIL, what, str(error), "Run the check as the agent's user, or enrol again."
        )
    if identity is None:
        advice = f"Run: vedette agent enroll PORTAL_URL TOKEN --data-dir {data_dir}"
        return None, Finding(Verdict.FAIL, what, f"{data_dir} holds none", advice)
    if mode & OTHERS_BITS:
        said = f"others can read {path}, which holds a secret"
        return identity, Finding(Verdict.FAIL, what, said, f"Run: chmod 600 {path}")
    return identity, Finding(Verdict.OK, what, f"appliance {identity.appliance_id}")


def _data_dir(data_dir: Path) -> Finding:
    what = "data folder"
    if not data_dir.is_dir():
        said = f"{data_dir} is no folder"
        return Finding(Verdict.FAIL, what, said, f"Run: install -d -m 0700 -o vedette {data_dir}")
    if not os.access(data_dir, os.W_OK | os.X_OK, effective_ids=True):
        said = f"this user (id {os.geteuid()}) can't write {data_dir}"
        return Finding(Verdict.FAIL, what, said, "Give it to the agent's user: chown -R vedette")
    owner = data_dir.stat().st_uid
    if owner != os.geteuid():
        said = f"{data_dir} belongs to user id {owner}, and this is user id {os.geteuid()}"
        advice = "Check again as the agent's user: runuser -u vedette -- vedette agent check"
        return Finding(Verdict.WARNING, what, said, advice)
    return Finding(Verdict.OK, what, f"{data_dir} can be written")


def _room(config: AgentConfig) -> Finding:
    folder = config.data_dir / "buffer"
    try:
        taken = sum(path.stat().st_size for path in folder.glob("*")) if folder.is_dir() else 0
        free = shutil.disk_usage(config.data_dir).free
    except OSError as error:
        return Finding(Verdict.WARNING, "room", f"can't be told: {error}")
    wanted = max(0, config.buffer_max_bytes - taken)
    said = (
        f"{format_value('free_bytes', free)} free, "
        f"the buffer may take {format_value('wanted_bytes', wanted)} more"
    )
    if free < wanted:
        advice = "Free some space, or lower buffer_max_bytes; a full disk costs samples."
        return Finding(Verdict.WARNING, "room", said, advice)
    return Finding(Verdict.OK, "room", said)


def _docker(config: AgentConfig) -> Finding:
    what, url = "Docker", urlsplit(config.docker_url)
    missing = Verdict.FAIL if config.executor == "docker" else Verdict.WARNING
    if url.scheme != "unix":
        return Finding(Verdict.OK, what, f"{config.docker_url} is not a socket of this host")
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(config.request_timeout_seconds)
            probe.connect(url.path)
    except PermissionError:
        advice = "Add the agent's user to the group docker and restart the agent, or set "
        advice += 'executor = "none" to run no jobs here.'
        return Finding(missing, what, f"this user may not open {url.path}", advice)
    except OSError as error:
        advice = 'Start the engine, or set executor = "none" to run no jobs here.'
        return Finding(missing, what, f"{url.path}: {error.strerror or error}", advice)
    return Finding(Verdict.OK, what, f"{url.path} answers")
