"""Probes of what the server depends on, beside `access.probes`; each raises what is wrong."""

from datetime import datetime, timedelta
from pathlib import Path
from threading import Event

from cryptography import x509
from sqlalchemy import select

from access.probes import probe_database as probe_writing_database
from core.broker import Broker, BrokerState
from core.db import SessionFactory, transaction
from core.disk_space import disk_space
from core.errors import DatabaseUnavailableError, UnavailableError
from core.leases import SCHEDULER_LEASE, Lease
from core.quantities import format_duration, format_size
from tenants.models import CertificateAuthority
from timeseries.store import Store, damage_notice

# Let's Encrypt renews 30 days before the end; agents get certificates from the CA for a week.
CERTIFICATE_WARNING = timedelta(days=14)
CA_WARNING = timedelta(days=30)


def probe_database(sessions: SessionFactory, *, now: datetime) -> None:
    """Write a row of the database.

    Raises:
        UnavailableError: it can't be written; has the driver's reason, which users never get.
    """
    try:
        probe_writing_database(sessions, now=now)
    except DatabaseUnavailableError as error:
        reason = getattr(error.__cause__, "orig", None) or error.__cause__
        raise UnavailableError(f"The database can't be written: {reason}.") from error


def probe_damage(store: Store) -> None:
    """Check that no samples were lost by damage that nobody has looked at.

    Raises:
        UnavailableError: some were; says what is retained.
    """
    notice = damage_notice(store)
    if notice:
        raise UnavailableError(f"The sample store is damaged. {notice} Run: vedette store repair")


def probe_shutdown(draining: Event) -> None:
    """Check that the server is not about to stop.

    Raises:
        UnavailableError: it is.
    """
    if draining.is_set():
        raise UnavailableError("The server is about to stop.")


def probe_disk(*folders: Path) -> None:
    """Check that there is room for what the server writes.

    Raises:
        UnavailableError: names the folder whose disk is almost full.
    """
    for folder in folders:
        space = disk_space(folder)
        if space.is_low:
            raise UnavailableError(
                f"The disk of {folder} has {format_size(space.free_bytes)} left. Free space on it."
            )


def probe_lease(sessions: SessionFactory, *, now: datetime) -> None:
    """Check that some process runs the periodic tasks.

    Raises:
        UnavailableError: nobody has the scheduler's lease.
    """
    with transaction(sessions) as session:
        expires_at = session.scalar(select(Lease.expires_at).where(Lease.name == SCHEDULER_LEASE))
    if expires_at is None or expires_at <= now:
        raise UnavailableError(
            "No process has the scheduler's lease: rules, placement and notifications stand still. "
            "Start a server, or see its log."
        )


def probe_certificates(
    sessions: SessionFactory, certificate_file: Path | None, *, now: datetime
) -> None:
    """Check that the server's certificate and the agents' CA stay valid.

    Raises:
        UnavailableError: one expires soon.
    """
    if certificate_file is not None:
        certificate = x509.load_pem_x509_certificates(certificate_file.read_bytes())[0]
        _require_time(
            f"The certificate in {certificate_file}",
            certificate.not_valid_after_utc - now,
            CERTIFICATE_WARNING,
            "Renew it: the file is reloaded.",
        )
    statement = select(CertificateAuthority.not_after).where(
        CertificateAuthority.retired_at.is_(None)
    )
    with transaction(sessions) as session:
        not_after = session.scalar(statement.order_by(CertificateAuthority.not_after.desc()))
    if not_after is not None:
        remedy = "Run: vedette ca rotate."
        _require_time("The CA of the agents' certificates", not_after - now, CA_WARNING, remedy)


def probe_broker(broker: Broker) -> None:
    """Check that messages of other processes arrive.

    Raises:
        UnavailableError: they don't; says what that means.
    """
    if broker.state is BrokerState.AWAY:
        raise UnavailableError(
            "Redis is away: changes of other processes are noticed by polling, and each process "
            f"counts limits for itself. {broker.problem}"
        )


def _require_time(subject: str, left: timedelta, warning: timedelta, remedy: str) -> None:
    if left <= timedelta(0):
        raise UnavailableError(f"{subject} has expired. {remedy}")
    if left < warning:
        duration = format_duration(left.total_seconds())
        raise UnavailableError(f"{subject} expires in {duration}. {remedy}")
