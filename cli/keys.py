"""The keys that encrypt secrets in the database: a server without them would make new ones.

What was encrypted before could then not be read any more, and no agent could enroll.
"""

import logging
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import InstrumentedAttribute

from alerting.models import Receiver
from core.db import SessionFactory, transaction
from core.errors import ConfigurationError, UnavailableError
from core.secretbox import KEY_FILE, SecretBox
from core.settings import ServerSettings
from datasets.models import DataConnection
from jobqueue.models import Job, JobSchedule
from logs.models import LogForward
from tenants.models import CertificateAuthority, User

log = logging.getLogger(__name__)

# All encrypted columns, by what users call their content.
ENCRYPTED: dict[str, tuple[type[Any], InstrumentedAttribute[Any]]] = {
    "webhook signing keys": (Receiver, Receiver.secret),
    "secrets of jobs": (Job, Job.secret_env),
    "secrets of job schedules": (JobSchedule, JobSchedule.secret_env),
    "tokens of log targets": (LogForward, LogForward.token),
    "credentials of data connections": (DataConnection, DataConnection.secrets),
    "second factors": (User, User.totp_secret),
    "certificate authority keys": (CertificateAuthority, CertificateAuthority.private_key),
}


def check_keys(sessions: SessionFactory, settings: ServerSettings) -> None:
    """Check that this server has the keys with which the database's secrets were encrypted.

    Raises:
        ConfigurationError: they are missing, or others.
    """
    samples = _samples(sessions)
    if not samples:
        return
    path = settings.data_dir / KEY_FILE
    if not settings.encryption_keys and not path.exists():
        problem = (
            f"the database has encrypted secrets ({', '.join(samples)}), but their keys are "
            f"missing: {path} does not exist, and encryption_keys is not set. Restore this "
            "file from a backup, or copy it from another server of this database"
        )
        raise ConfigurationError([problem], source="The configuration")
    box = SecretBox.of(settings)
    unreadable = [kind for kind, stored in samples.items() if not _can_read(box, stored)]
    if len(unreadable) == len(samples):
        place = "the setting encryption_keys" if settings.encryption_keys else str(path)
        problem = (
            f"the keys in {place} are not those that encrypted the database's secrets "
            f"({', '.join(samples)}). Add the old key to them, after the first. Several servers of "
            "one database need the same keys: copy them from the first"
        )
        raise ConfigurationError([problem], source="The configuration")
    if unreadable:
        log.error("no key in encryption_keys decrypts the %s", ", ".join(unreadable))


def _samples(sessions: SessionFactory) -> dict[str, str]:
    """Return an encrypted text of each kind that the database has."""
    samples = {}
    with transaction(sessions) as session:
        for kind, (_model, column) in ENCRYPTED.items():
            filled = select(column).where(column.is_not(None), column != "")
            stored = session.scalar(filled.limit(1))
            if stored is not None:
                samples[kind] = stored
    return samples


def _can_read(box: SecretBox, stored: str) -> bool:
    try:
        box.decrypt(stored)
    except UnavailableError:
        return False
    return True
