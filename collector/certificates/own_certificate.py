"""This appliance's client certificate: got from the portal, kept in the data folder, renewed.

One file holds the key and the certificate, so that a crash never leaves one without the other.
"""

import logging
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from collector.certificates.signing_request import request_for_new_key
from collector.errors import CertificateError
from collector.files import replace_file
from core.clock import from_ns, to_ns
from jobqueue.executors.wire import IssuedCertificate

log = logging.getLogger(__name__)

CERTIFICATE_NAME = "certificate.pem"
FACTS_NAME = "certificate.json"
AUTHORITIES_NAME = "authorities.pem"
NEXT_KEY_NAME = "next-key.pem"
TROUBLE_NAME = "certificate-trouble.json"
RENEW_AFTER_RATIO = 2 / 3
_ALL_NAMES = (FACTS_NAME, CERTIFICATE_NAME, AUTHORITIES_NAME, NEXT_KEY_NAME, TROUBLE_NAME)


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of a certificate; times are of the appliance's clock."""

    received_at_ns: int
    lifetime_seconds: float
    is_enough: bool = False

    @property
    def received_at(self) -> datetime:
        """When it came."""
        return from_ns(self.received_at_ns)


class RenewalTrouble(msgspec.Struct, frozen=True, kw_only=True):
    """Since when renewals fail, and what was said last; kept for people to be shown."""

    since_ns: int
    reason: str

    @property
    def since(self) -> datetime:
        """When the first of them failed."""
        return from_ns(self.since_ns)


class OwnCertificate:
    """The certificate in a data folder. Safe to share by threads; one of them renews it.

    Args:
        data_dir: the folder.
        is_shown: whether it is what connections show; False where another one is configured.
    """

    def __init__(self, data_dir: Path, *, is_shown: bool = True) -> None:
        self._folder = data_dir
        self._is_shown = is_shown
        self._facts = self._load()
        self._trouble = load_trouble(data_dir)

    @property
    def path(self) -> Path:
        """The file with key and certificate; it need not be there."""
        return self._folder / CERTIFICATE_NAME

    def is_enough_for(self, url: str) -> bool:
        """Whether the certificate alone tells this address who is asking."""
        facts = self._facts
        return self._is_shown and url.startswith("https:") and facts is not None and facts.is_enough

    def doubt(self) -> None:
        """Take it that the certificate is not enough: somebody who should know it refused it."""
        if self._facts is not None and self._facts.is_enough:
            self._facts = msgspec.structs.replace(self._facts, is_enough=False)

    def seconds_until_renewal(self, now: datetime, *, early_ratio: float = 0.0) -> float:
        """Return how long the certificate need not be renewed; 0 where there is none.

        `early_ratio` is by which part of its lifetime it is renewed before it is time.
        """
        facts = self._facts
        if facts is None or now < facts.received_at:  # the clock was set back
            return 0.0
        lifetime = timedelta(seconds=facts.lifetime_seconds)
        due_at = facts.received_at + lifetime * (RENEW_AFTER_RATIO - early_ratio)
        return max(0.0, (due_at - now).total_seconds())

    def remaining_seconds(self, now: datetime) -> float | None:
        """Return how long it is good for yet, less than 0 when it ran out; None without one."""
        facts = self._facts
        if facts is None:
            return None
        return facts.lifetime_seconds - (now - facts.received_at).total_seconds()

    def note_trouble(self, reason: str, *, now: datetime) -> None:
        """Keep that a renewal failed, where `vedette agent check` finds it."""
        before = self._trouble
        if before is not None and before.reason == reason:
            return
        since_ns = before.since_ns if before is not None else to_ns(now)
        self._trouble = RenewalTrouble(since_ns=since_ns, reason=reason)
        try:
            replace_file(self._folder / TROUBLE_NAME, msgspec.json.encode(self._trouble))
        except OSError as error:
            log.debug("%s can't be written: %s", TROUBLE_NAME, error)

    def request(self) -> str:
        """Make the key of the next certificate and return the request for it.

        Raises:
            CertificateError: the key could not be made.
        """
        return request_for_new_key(self._folder / NEXT_KEY_NAME)

    def take(self, issued: IssuedCertificate, *, now: datetime) -> None:
        """Keep the answer to the last request; connections use it from now on.

        Raises:
            CertificateError: the data folder can't be written.
        """
        facts = Facts(
            received_at_ns=to_ns(now),
            lifetime_seconds=issued.lifetime_seconds,
            is_enough=issued.is_enough,
        )
        next_key = self._folder / NEXT_KEY_NAME
        try:
            content = next_key.read_bytes() + issued.certificate.encode()
            replace_file(self._folder / AUTHORITIES_NAME, issued.authorities.encode(), mode=0o644)
            replace_file(self.path, content, mode=0o600)
            replace_file(self._folder / FACTS_NAME, msgspec.json.encode(facts), mode=0o600)
            next_key.unlink()
            (self._folder / TROUBLE_NAME).unlink(missing_ok=True)
        except OSError as error:
            raise CertificateError(
                f"The certificate can't be kept in {self._folder}: {error.strerror}"
            ) from error
        self._facts, self._trouble = facts, None

    def remove(self) -> None:
        """Forget it, as before this appliance is enrolled anew."""
        for name in _ALL_NAMES:
            (self._folder / name).unlink(missing_ok=True)
        self._facts = self._trouble = None

    def _load(self) -> Facts | None:
        if not self.path.exists():
            return None
        try:
            return msgspec.json.decode((self._folder / FACTS_NAME).read_bytes(), type=Facts)
        except (OSError, msgspec.MsgspecError) as error:
            log.debug("%s can't be used, so the certificate is renewed: %s", FACTS_NAME, error)
            return None


def load_trouble(data_dir: Path) -> RenewalTrouble | None:
    """Return what is kept of failed renewals; None where the last one went well."""
    try:
        return msgspec.json.decode((data_dir / TROUBLE_NAME).read_bytes(), type=RenewalTrouble)
    except (OSError, msgspec.MsgspecError):
        return None
