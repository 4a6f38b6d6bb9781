"""What the server needs from its host, database, store and mail server; each fault has a remedy.

The checks of the first function are made at every start, all of them by `vedette server check`.
"""

import http.client
import re
import secrets
from contextlib import closing
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

from sqlalchemy import make_url

from alerting.notification.senders.notify import DeliveryError, EmailSender
from backup.repository import Repository, redacted
from cli.certificate_check import check_certificate
from cli.database_checks import Check, check_database, check_operators, check_rights
from cli.listen_address import check_port
from cli.locked_packages import check_packages
from cli.server_health import server_problem
from cli.server_hosts import check_hosts
from core.broker import BrokerState, redacted_redis_url
from core.clock import utc_now
from core.database_checks import MAX_SKEW, Problem
from core.disk_space import can_write, disk_space
from core.errors import ConfigurationError, VedetteError
from core.quantities import format_size
from core.settings import ServerSettings
from timeseries.open_store import open_store
from timeseries.store import check_store
from timeseries.store_url import parse_store_url

HTTP_SECONDS = 5.0
REDIS_SECONDS = 5.0
# Users paste the address into a shell, so it has nothing else, such as a password.
_HOST_AND_PORT = re.compile(r"([\w.-]+|\[[\da-fA-F:.]+\])(:\d+)?")


def startup_checks(settings: ServerSettings) -> list[Check]:
    """Return the outcome of the checks that take no time; they need the data folder."""
    return [
        check_public_url(settings),
        check_folder(settings),
        check_database(settings),
    ]


def all_checks(settings: ServerSettings) -> list[Check]:
    """Return the outcome of every check."""
    return [
        *startup_checks(settings),
        check_rights(settings),
        check_operators(settings),
        check_server_store(settings),
        check_hosts(settings),
        check_listener(settings),
        check_broker(settings),
        check_clock(settings),
        check_mail(settings),
        check_certificate(settings),
        check_backups(settings),
        check_packages(),
    ]


def require_startup(settings: ServerSettings) -> list[Problem]:
    """Return the problems with which a server can run.

    Raises:
        ConfigurationError: lists those with which it can't.
    """
    problems = [problem for check in startup_checks(settings) for problem in check.problems]
    fatal = [problem.text for problem in problems if problem.is_fatal]
    if fatal:
        raise ConfigurationError(fatal, source="This server")
    return problems


def check_public_url(settings: ServerSettings) -> Check:
    """Check the address that users and agents open."""
    url = settings.resolved_public_url
    parts = urlsplit(url)
    problems = []
    if parts.scheme not in {"http", "https"} or not _HOST_AND_PORT.fullmatch(parts.netloc):
        problems.append(
            Problem(
                f"public_url {url!r} is not the address of a web site.",
                "Set VEDETTE_PUBLIC_URL to one such as https://portal.example.com.",
            )
        )
    elif parts.path or parts.query or parts.fragment:
        origin = f"{parts.scheme}://{parts.netloc}"
        problems.append(
            Problem(
                f"public_url {url} has a path: Vedette needs a host name of its own.",
                f"Set VEDETTE_PUBLIC_URL={origin}, and let the proxy pass on all paths.",
            )
        )
    elif parts.scheme == "http" and parts.hostname not in {"127.0.0.1", "localhost", "::1"}:
        problems.append(
            Problem(
                f"public_url {url} is not encrypted: passwords and tokens can be read on the way.",
                "Use https, with nginx (deploy/nginx) or tls_certificate_file.",
                is_fatal=False,
            )
        )
    return Check("public URL", url, tuple(problems))


def check_folder(settings: ServerSettings) -> Check:
    """Check that the data folder can be written, and has space."""
    folder = settings.data_dir
    if folder.exists() and not can_write(folder):
        problem = Problem(
            f"data_dir {folder} can't be written by this user.",
            "Give the folder to the server's user, or change it with VEDETTE_DATA_DIR.",
        )
        return Check("data folder", str(folder), (problem,))
    space = disk_space(folder)
    detail = f"{folder}, {format_size(space.free_bytes)} free"
    if not space.is_low:
        return Check("data folder", detail)
    problem = Problem(
        f"The disk of {folder} has {format_size(space.free_bytes)} left.",
        "Free space on it, or shorten the retention of samples and jobs.",
        is_fatal=False,
    )
    return Check("data folder", detail, (problem,))


def check_server_store(settings: ServerSettings) -> Check:
    """Check that the store answers; the embedded one is asked through the server that has it."""
    url = settings.resolved_timeseries_url
    try:
        parsed = parse_store_url(url)
    except ConfigurationError as error:
        problem = Problem(error.message, "Correct TIMESERIES_URL.")
        return Check("sample store", "", (problem,))
    if parsed.file is not None:
        reported = server_problem(settings)
        if reported != "":
            detail = f"{parsed.redacted}, open in the running server"
            problems = (Problem(reported, "See the server's log."),) if reported else ()
            return Check("sample store", detail, problems)
        if not parsed.file.exists():
            return Check("sample store", f"{parsed.file} does not exist yet")
    try:
        with closing(open_store(url)) as store:
            check_store(store)
    except VedetteError as error:
        problem = Problem(error.message, "Start it, or correct TIMESERIES_URL.")
        return Check("sample store", parsed.redacted, (problem,))
    return Check("sample store", parsed.redacted)


def check_listener(settings: ServerSettings) -> Check:
    """Check that the server can listen, unless it does."""
    address = f"{settings.host}:{settings.port}"
    if server_problem(settings) != "":
        return Check("listener", f"{address}, the server is running")
    try:
        check_port(settings.host, settings.port)
    except ConfigurationError as error:
        return Check("listener", address, (Problem(error.problems[0] + ".", ""),))
    return Check("listener", f"{address}, free")


def check_clock(settings: ServerSettings) -> Check:
    """Compare this host's clock with the store's; the database's is compared by its own check."""
    try:
        parse_store_url(settings.resolved_timeseries_url)
    except ConfigurationError:
        return Check("clock", "not compared: TIMESERIES_URL is invalid")
    parts = urlsplit(settings.resolved_timeseries_url)
    if parts.scheme.rstrip("s") not in {"influxdb", "victoriametric"} or not parts.hostname:
        is_remote = make_url(settings.resolved_database_url).get_backend_name() != "sqlite"
        compared = "compared with the database's" if is_remote else "not compared: all is local"
        return Check("clock", compared)
    is_encrypted = parts.scheme in {"influxdbs", "victoriametricss"}
    kind = http.client.HTTPSConnection if is_encrypted else HTTPConnection
    with closing(kind(parts.hostname, parts.port or 80, timeout=HTTP_SECONDS)) as connection:
        try:
            connection.request("HEAD", "/")
            date = connection.getresponse().headers["Date"]
        except (OSError, HTTPException):
            return Check("clock", "not compared: the store does not answer")
    if date is None:
        return Check("clock", "not compared: the store does not tell the time")
    skew = parsedate_to_datetime(date) - utc_now()
    if abs(skew) <= MAX_SKEW:
        return Check("clock", "compared with the store's")
    problem = Problem(
        f"The store's clock differs by {abs(skew).total_seconds():.0f} s from this host's.",
        "Synchronize the clocks of both hosts by NTP.",
        is_fatal=False,
    )
    return Check("clock", date, (problem,))


def check_broker(settings: ServerSettings) -> Check:
    """Check that Redis delivers messages."""
    if not settings.redis_url:
        return Check("broker", "not configured: processes notice each other's changes by polling")
    from core.redis_broker import RedisBroker  # noqa: PLC0415 - only where Redis is used

    url = redacted_redis_url(settings.redis_url)
    # A key of its own: the portal's processes are not disturbed, nor a key made.
    probe = RedisBroker(settings.redis_url, key=secrets.token_bytes(64))
    with probe.running(wait_seconds=REDIS_SECONDS) as broker:
        if broker.state is BrokerState.CONNECTED:
            return Check("broker", url)
        problem = Problem(
            f"Redis at {url} is away: {broker.problem}",
            "Start it, or correct VEDETTE_REDIS_URL.",
            is_fatal=False,
        )
    return Check("broker", url, (problem,))


def check_mail(settings: ServerSettings) -> Check:
    """Check that the mail server accepts the password."""
    if not settings.smtp_url:
        return Check("mail", "not configured: receivers and invitations by email can't be used")
    try:
        EmailSender(settings.smtp_url, settings.mail_from).check()
    except DeliveryError as error:
        problem = Problem(error.message, "Correct VEDETTE_SMTP_URL.", is_fatal=False)
        return Check("mail", "", (problem,))
    return Check("mail", f"{urlsplit(settings.smtp_url).hostname}, from {settings.mail_from}")


def check_backups(settings: ServerSettings) -> Check:
    """Check that backups are made, and that their program and password are there."""
    if not settings.backup_url:
        return Check("backups", "not configured: if this host is lost, everything is")
    try:
        Repository.of(settings)
    except ConfigurationError as error:
        problems = [
            Problem(f"{problem}.", "docs/backup.md has all steps.", is_fatal=False)
            for problem in error.problems
        ]
        return Check("backups", redacted(settings.backup_url), tuple(problems))
    return Check("backups", redacted(settings.backup_url))
