"""The checks of `vedette agent check`: permissions and disk space, certificate, connections.

Each check returns one message, with advice if it failed. None changes anything.
"""

import os
import shutil
import socket
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from collector.certificates import (
    CERTIFICATE_NAME,
    AgentCertificate,
    Validity,
    load_renewal_failure,
    read_validity,
)
from collector.checks.connections import CheckResult, Verdict, check_connections
from collector.checks.datasets import check_datasets
from collector.config import AgentConfig
from collector.data_dir import IDENTITY_NAME, Identity, load_identity
from collector.errors import CertificateError, EnrollmentError
from core.clock import Clock
from core.quantities import format_size
from jobqueue.executors.abilities import CLUSTERS

OTHERS_BITS = 0o077
CERTIFICATE = "client certificate"
HOUR_SECONDS = 3600.0
DAY_SECONDS = 86_400.0
# Warn if a configured certificate is not renewed by then.
EXPIRES_SOON_SECONDS = 14 * DAY_SECONDS
EXPIRES_SOON_RATIO = 0.2
# Warn if the agent renews its own certificate later than this part of the lifetime after due.
LATE_RATIO = 0.1
RENEW_ADVICE = "Renew it; the agent uses the new file without a restart."
AGENT_ADVICE = "The agent renews it: check that it runs, and read its log."


def check_appliance(config: AgentConfig, *, clock: Clock) -> Iterator[CheckResult]:
    """Yield the results of all checks."""
    yield from check_permissions(config)
    identity = None
    if config.influxdb is None:
        identity, result = _check_identity_file(config.data_dir)
        yield result
    if config.executor == "marathon" or config.executor in CLUSTERS:
        # Imported only if it is used, to save memory.
        from collector.checks.schedulers import check_schedulers  # noqa: PLC0415

        yield from check_schedulers(config)
    yield from check_datasets(config)
    yield from check_certificate(config, clock=clock)
    yield from check_connections(config, identity, clock=clock)
    if config.remote_write is not None:
        # Imported only if it is used, to save memory.
        from collector.checks.remote_write import check_remote_write_server  # noqa: PLC0415

        yield from check_remote_write_server(config)


def check_permissions(config: AgentConfig) -> Iterator[CheckResult]:
    """Check that this user can write to the data folder, has disk space, and can use Docker."""
    yield _check_data_dir(config.data_dir)
    if config.data_dir.is_dir():
        yield _check_disk_space(config)
    if config.executor in {"auto", "docker"}:
        yield _check_docker(config)


def check_certificate(config: AgentConfig, *, clock: Clock) -> Iterator[CheckResult]:
    """Check the client certificate in use and its validity."""
    issued = config.data_dir / CERTIFICATE_NAME
    if config.client_certificate_file is not None:
        yield _check_configured(config.client_certificate_file, issued, now=clock())
        return
    if config.influxdb is not None or not any(
        url.startswith("https:") for url in config.portal_urls
    ):
        return
    if issued.exists():
        yield _check_issued(AgentCertificate(config.data_dir), now=clock())
    else:
        message = "none yet; the running agent requests one if the portal issues them"
        yield CheckResult(Verdict.OK, CERTIFICATE, message)
    if (failure := load_renewal_failure(config.data_dir)) is not None:
        message = f"failing since {_timestamp(failure.since)}: {failure.reason}"
        advice = "The agent keeps trying; nothing is lost while the current one is valid."
        yield CheckResult(Verdict.WARNING, "renewal of the certificate", message, advice)


def _check_identity_file(data_dir: Path) -> tuple[Identity | None, CheckResult]:
    name, path = "identity", data_dir / IDENTITY_NAME
    try:
        identity = load_identity(data_dir)
        mode = path.stat().st_mode if identity is not None else 0
    except (EnrollmentError, OSError) as error:
        advice = "Run the check as the agent's user, or enroll again."
        return None, CheckResult(Verdict.FAIL, name, str(error), advice)
    if identity is None:
        advice = f"Run: vedette agent enroll PORTAL_URL TOKEN --data-dir {data_dir}"
        return None, CheckResult(Verdict.FAIL, name, f"not enrolled: none in {data_dir}", advice)
    if mode & OTHERS_BITS:
        message = f"other users can read {path}, which contains a secret"
        return identity, CheckResult(Verdict.FAIL, name, message, f"Run: chmod 600 {path}")
    return identity, CheckResult(Verdict.OK, name, f"appliance {identity.appliance_id}")


def _check_data_dir(data_dir: Path) -> CheckResult:
    name = "data folder"
    if not data_dir.is_dir():
        advice = f"Run: install -d -m 0700 -o vedette {data_dir}"
        return CheckResult(Verdict.FAIL, name, f"{data_dir} is not a folder", advice)
    if not os.access(data_dir, os.W_OK | os.X_OK, effective_ids=True):
        message = f"this user (id {os.geteuid()}) can't write to {data_dir}"
        advice = f"Make the agent's user its owner: chown -R vedette {data_dir}"
        return CheckResult(Verdict.FAIL, name, message, advice)
    owner = data_dir.stat().st_uid
    if owner != os.geteuid():
        message = f"{data_dir} belongs to user id {owner}, but this is user id {os.geteuid()}"
        advice = "Check again as the agent's user: runuser -u vedette -- vedette agent check"
        return CheckResult(Verdict.WARNING, name, message, advice)
    return CheckResult(Verdict.OK, name, f"{data_dir} is writable")


def _check_disk_space(config: AgentConfig) -> CheckResult:
    name, folder = "disk space", config.data_dir / "buffer"
    try:
        used = sum(path.stat().st_size for path in folder.glob("*")) if folder.is_dir() else 0
        free = shutil.disk_usage(config.data_dir).free
    except OSError as error:
        return CheckResult(Verdict.WARNING, name, f"unknown: {error}")
    needed = max(0, config.buffer_max_bytes - used)
    message = f"{format_size(free)} free, the buffer can grow by {format_size(needed)}"
    if free < needed:
        advice = "Free disk space or lower buffer_max_bytes: a full disk loses samples."
        return CheckResult(Verdict.WARNING, name, message, advice)
    return CheckResult(Verdict.OK, name, message)


def _check_docker(config: AgentConfig) -> CheckResult:
    name, url = "Docker", urlsplit(config.docker_url)
    failed = Verdict.FAIL if config.executor == "docker" else Verdict.WARNING
    if url.scheme != "unix":
        return CheckResult(Verdict.OK, name, f"{config.docker_url} is not a socket on this host")
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(config.request_timeout_seconds)
            probe.connect(url.path)
    except PermissionError:
        advice = (
            "Add the agent's user to the group docker and restart the agent, or set "
            'executor = "none" to run no jobs.'
        )
        return CheckResult(failed, name, f"this user has no access to {url.path}", advice)
    except OSError as error:
        advice = 'Start Docker, or set executor = "none" to run no jobs.'
        return CheckResult(failed, name, f"{url.path}: {error.strerror or error}", advice)
    return CheckResult(Verdict.OK, name, f"{url.path} answers")


def _check_configured(path: Path, issued: Path, *, now: datetime) -> CheckResult:
    try:
        validity = read_validity(path)
    except CertificateError as error:
        advice = "Correct client_certificate_file."
        return CheckResult(Verdict.FAIL, CERTIFICATE, error.message, advice)
    instead = " instead of the portal's" if issued.exists() else ""
    message = f"{path} is used{instead}, {_validity_text(validity, now)}"
    if not validity.begins_at <= now < validity.ends_at:
        return CheckResult(Verdict.FAIL, CERTIFICATE, message, RENEW_ADVICE)
    soon_seconds = min(EXPIRES_SOON_SECONDS, validity.lifetime_seconds * EXPIRES_SOON_RATIO)
    if validity.remaining_seconds(now) < soon_seconds:
        return CheckResult(Verdict.WARNING, CERTIFICATE, message, RENEW_ADVICE)
    return CheckResult(Verdict.OK, CERTIFICATE, message)


def _check_issued(certificate: AgentCertificate, *, now: datetime) -> CheckResult:
    try:
        validity = read_validity(certificate.path)
    except CertificateError as error:
        return CheckResult(Verdict.FAIL, CERTIFICATE, error.message, AGENT_ADVICE)
    message = f"the portal's is used, {_validity_text(validity, now)}"
    if not validity.begins_at <= now < validity.ends_at:
        return CheckResult(Verdict.FAIL, CERTIFICATE, message, AGENT_ADVICE)
    if not certificate.seconds_until_renewal(now, early_ratio=-LATE_RATIO):
        message += ", renewal is overdue"
        return CheckResult(Verdict.WARNING, CERTIFICATE, message, AGENT_ADVICE)
    return CheckResult(Verdict.OK, CERTIFICATE, message)


def _validity_text(validity: Validity, now: datetime) -> str:
    if now < validity.begins_at:
        return f"not valid before {_timestamp(validity.begins_at)}"
    seconds = validity.remaining_seconds(now)
    if seconds <= 0:
        return f"expired at {_timestamp(validity.ends_at)}"
    is_short = seconds < 2 * DAY_SECONDS
    hours, days = f"{seconds / HOUR_SECONDS:.1f} hours", f"{seconds / DAY_SECONDS:.1f} days"
    return f"valid until {_timestamp(validity.ends_at)} ({hours if is_short else days})"


def _timestamp(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"
