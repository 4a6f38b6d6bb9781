"""This appliance's client certificate: got from the portal, kept in the data folder, renewed.

One file holds the key and the certificate, so that a crash never leaves one without the other.
"""

import logging
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from collector.errors import CertificateError
from collector.files import replace_file
from collector.signing_request import request_for_new_key
from core.clock import from_ns, to_ns
from jobqueue.executors.wire import IssuedCertificate

log = logging.getLogger(__name__)

CERTIFICATE_NAME = "certificate.pem"
FACTS_NAME = "certificate.json"
AUTHORITIES_NAME = "authorities.pem"
NEXT_KEY_NAME = "next-key.pem"
RENEW_AFTER_RATIO = 2 / 3


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of a certificate; times are of the appliance's clock."""

    received_at_ns: int
    lifetime_seconds: float
    is_enough: bool = False

    @property
    def received_at(self) -> datetime:
        """When it came."""
        return from_ns(self.received_at_ns)


class OwnCertificate:
    """The certificate in a data folder. Safe to share by threads; one of them renews it."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir
        self._facts = self._load()

    @property
    def path(self) -> Path:
        """The file with key and certificate; it need not be there."""
        return self._folder / CERTIFICATE_NAME

    def is_enough_for(self, url: str) -> bool:
        """Whether the certificate alone tells this address who is asking."""
        return url.startswith("https:") and self._facts is not None and self._facts.is_enough

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
        except OSError as error:
            raise CertificateError(
                f"The certificate can't be kept in {self._folder}: {error.strerror}"
            ) from error
        self._facts = facts

    def remove(self) -> None:
        """Forget it, as before this appliance is enrolled anew."""
        for name in (FACTS_NAME, CERTIFICATE_NAME, AUTHORITIES_NAME, NEXT_KEY_NAME):
            (self._folder / name).unlink(missing_ok=True)
        self._facts = None

    def _load(self) -> Facts | None:
        if not self.path.exists():
            return None
        try:
            return msgspec.json.decode((self._folder / FACTS_NAME).read_bytes(), type=Facts)
        except (OSError, msgspec.MsgspecError) as error:
            log.debug("%s can't be used, so the certificate is renewed: %s", FACTS_NAME, error)
            return None
