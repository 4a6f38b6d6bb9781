"""`vedette relay check`: what a relay needs, with cause and remedy of each fault."""

import asyncio
import ssl
from datetime import timedelta

from cryptography import x509

from cli.database_checks import Check
from collector.buffering.undeliverable import UndeliverableLines
from core.clock import Clock, utc_now
from core.database_checks import Problem
from core.disk_space import can_write, disk_space
from core.errors import ConfigurationError
from core.quantities import format_size
from protocol.relays import RegistrySnapshot
from relay.errors import UpstreamAwayError, UpstreamRefusedError
from relay.settings import RelaySettings, relay_token, upstream_tls
from relay.upstream import Upstream

CERTIFICATE_WARNING = timedelta(days=14)


def relay_checks(settings: RelaySettings, *, clock: Clock = utc_now) -> list[Check]:
    """Return the outcome of every check."""
    return [
        check_folder(settings),
        check_spool_room(settings),
        check_undeliverable(settings),
        check_certificate(settings, clock=clock),
        check_upstream(settings),
    ]


def check_folder(settings: RelaySettings) -> Check:
    """Check that the data folder can be written."""
    folder = settings.data_dir
    if folder.exists() and can_write(folder):
        return Check("data folder", str(folder))
    cause = f"data_dir {folder} can't be written by this user."
    if not folder.exists():
        cause = f"data_dir {folder} does not exist."
    remedy = "Create it for the relay's user, or change it with VEDETTE_RELAY_DATA_DIR."
    return Check("data folder", str(folder), (Problem(cause, remedy),))


def check_spool_room(settings: RelaySettings) -> Check:
    """Check that the disk has room for the whole spool."""
    space = disk_space(settings.data_dir)
    files = settings.spool_dir.glob("*") if settings.spool_dir.exists() else ()
    used_bytes = sum(path.stat().st_size for path in files)
    needed_bytes = settings.max_spool_bytes - used_bytes + settings.min_free_disk_bytes
    detail = f"{format_size(used_bytes)} of {format_size(settings.max_spool_bytes)} used"
    if space.free_bytes >= needed_bytes:
        return Check("spool", detail)
    problem = Problem(
        f"The disk has {format_size(space.free_bytes)} left, and a full spool needs "
        f"{format_size(needed_bytes)}: it will be full earlier.",
        "Use a larger disk, or set VEDETTE_RELAY_MAX_SPOOL_BYTES.",
        is_fatal=space.free_bytes < settings.min_free_disk_bytes,
    )
    return Check("spool", detail, (problem,))


def check_undeliverable(settings: RelaySettings) -> Check:
    """Check that the portal has stored all lines of the spool."""
    path = settings.undeliverable_file
    size_bytes = UndeliverableLines(path).size_bytes
    if not size_bytes:
        return Check("undeliverable lines", "none")
    problem = Problem(
        f"{path} has lines that the portal did not store, with the reasons.",
        "Send what you need of them again, and delete the file.",
        is_fatal=False,
    )
    return Check("undeliverable lines", format_size(size_bytes), (problem,))


def check_certificate(settings: RelaySettings, *, clock: Clock = utc_now) -> Check:
    """Check that the relay's user can use certificate and key, and that it is valid."""
    path = settings.tls_certificate_file
    if path is None:
        return Check("certificate", "not configured: the portal is on this host")
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # Without the callback, an encrypted key prompts for its password on the terminal.
        context.load_cert_chain(path, settings.tls_key_file, password=lambda: "")
        until = x509.load_pem_x509_certificates(path.read_bytes())[0].not_valid_after_utc
    except (OSError, ValueError) as error:
        problem = Problem(
            f"tls_certificate_file {path} or tls_key_file {settings.tls_key_file} can't be used: "
            f"{getattr(error, 'strerror', None) or error}.",
            "Correct the files; the relay's user must be able to read both.",
        )
        return Check("certificate", "", (problem,))
    detail = f"{path}, valid until {until:%Y-%m-%d}"
    if until > clock() + CERTIFICATE_WARNING:
        return Check("certificate", detail)
    cause = "The certificate expires soon." if until > clock() else "The certificate has expired."
    remedy = "Renew it; a running relay loads the new one by itself."
    return Check("certificate", detail, (Problem(cause, remedy, is_fatal=until <= clock()),))


def check_upstream(settings: RelaySettings) -> Check:
    """Check that the portal answers and accepts the token."""
    try:
        snapshot = asyncio.run(_registry(settings))
    except ConfigurationError as error:
        problem = Problem(f"{error.message}.", "Correct the setting.")
    except UpstreamRefusedError as error:
        problem = Problem(error.message, "")
    except UpstreamAwayError as error:
        problem = Problem(
            error.message, "Correct upstream_url, or let the connection through the firewall."
        )
    else:
        agents = len(snapshot.agents) if snapshot is not None else 0
        return Check("portal", f"{settings.upstream}, {agents} agents may connect here")
    return Check("portal", settings.upstream, (problem,))


async def _registry(settings: RelaySettings) -> RegistrySnapshot | None:
    upstream = Upstream(settings.upstream, token=relay_token(settings), tls=upstream_tls(settings))
    try:
        return await upstream.registry("", wait_seconds=0)
    finally:
        await upstream.close()
