"""Client certificates of the agent, and the certificate authorities that it trusts.

The portal issues a certificate for a key that never leaves the appliance. An admin can configure
another one (`client_certificate_file`), for a server in front of the portal with its own authority.
One file holds both key and certificate, so that a crash never separates them.
"""

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from collector.data_dir import load_json, save_json
from collector.errors import CertificateError, EnrollmentError
from core.atomic_files import replace_file
from core.clock import from_ns, to_ns
from protocol.enrollment import IssuedCertificate

log = logging.getLogger(__name__)

CERTIFICATE_NAME = "certificate.pem"
METADATA_NAME = "certificate.json"
AUTHORITIES_NAME = "authorities.pem"
PORTAL_AUTHORITY_NAME = "portal-ca.pem"
NEXT_KEY_NAME = "next-key.pem"
FAILURE_NAME = "certificate-failure.json"
RENEW_AFTER_RATIO = 2 / 3
CHECK_INTERVAL_SECONDS = 60.0
_ALL_NAMES = (METADATA_NAME, CERTIFICATE_NAME, AUTHORITIES_NAME, NEXT_KEY_NAME, FAILURE_NAME)


class CertificateMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata of the issued certificate; times are by the appliance's clock."""

    received_at_ns: int
    lifetime_seconds: float
    replaces_secret: bool = False

    @property
    def received_at(self) -> datetime:
        """The time when the certificate was received."""
        return from_ns(self.received_at_ns)


class RenewalFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Since when renewals fail, and the last reason."""

    since_ns: int
    reason: str

    @property
    def since(self) -> datetime:
        """The time when the first of them failed."""
        return from_ns(self.since_ns)


class AgentCertificate:
    """The certificate that the portal issued. Thread-safe, as long as one thread renews it.

    Args:
        data_dir: where it is stored.
        is_active: whether connections present it; False if another one is configured.
    """

    def __init__(self, data_dir: Path, *, is_active: bool = True) -> None:
        self._folder = data_dir
        self._is_active = is_active
        self._metadata = None
        if self.path.exists():
            self._metadata = load_json(data_dir / METADATA_NAME, CertificateMetadata)
        self._failure = load_renewal_failure(data_dir)

    @property
    def path(self) -> Path:
        """The file with key and certificate; it may not exist."""
        return self._folder / CERTIFICATE_NAME

    def replaces_secret_for(self, url: str) -> bool:
        """Return whether the certificate replaces the agent's token at this address."""
        metadata = self._metadata
        is_trusted = metadata is not None and metadata.replaces_secret
        return self._is_active and url.startswith("https:") and is_trusted

    def distrust(self) -> None:
        """Send the token again: the portal did not accept the certificate alone."""
        if self._metadata is not None and self._metadata.replaces_secret:
            self._metadata = msgspec.structs.replace(self._metadata, replaces_secret=False)

    def seconds_until_renewal(self, now: datetime, *, early_ratio: float = 0.0) -> float:
        """Return the seconds until renewal is due; 0 if there is no certificate.

        Args:
            now: the time.
            early_ratio: renew earlier by this part of the lifetime.
        """
        metadata = self._metadata
        if metadata is None or now < metadata.received_at:  # the clock was set back
            return 0.0
        lifetime = timedelta(seconds=metadata.lifetime_seconds)
        due_at = metadata.received_at + lifetime * (RENEW_AFTER_RATIO - early_ratio)
        return max(0.0, (due_at - now).total_seconds())

    def remaining_seconds(self, now: datetime) -> float | None:
        """Return how long it is still valid, negative once expired; None without a certificate."""
        metadata = self._metadata
        if metadata is None:
            return None
        return metadata.lifetime_seconds - (now - metadata.received_at).total_seconds()

    def is_expired(self, now: datetime) -> bool:
        """Return whether there is a certificate that is no longer valid."""
        remaining_seconds = self.remaining_seconds(now)
        return remaining_seconds is not None and remaining_seconds <= 0

    def record_failure(self, reason: str, *, now: datetime) -> None:
        """Store a failed renewal, for `vedette agent check`."""
        before = self._failure
        if before is not None and before.reason == reason:
            return
        since_ns = before.since_ns if before is not None else to_ns(now)
        self._failure = RenewalFailure(since_ns=since_ns, reason=reason)
        save_json(self._folder / FAILURE_NAME, self._failure)

    def create_request(self) -> str:
        """Create the next key and return a certificate signing request for it.

        Raises:
            CertificateError: the key can't be stored.
        """
        return create_key_and_request(self._folder / NEXT_KEY_NAME)

    def store(self, issued: IssuedCertificate, *, now: datetime) -> None:
        """Store the certificate for the last request; connections use it from now on.

        Raises:
            CertificateError: the data folder isn't writable.
        """
        metadata = CertificateMetadata(
            received_at_ns=to_ns(now),
            lifetime_seconds=issued.lifetime_seconds,
            replaces_secret=issued.replaces_secret,
        )
        next_key = self._folder / NEXT_KEY_NAME
        try:
            content = next_key.read_bytes() + issued.certificate.encode()
            replace_file(self._folder / AUTHORITIES_NAME, issued.authorities.encode())
            replace_file(self.path, content)
            replace_file(self._folder / METADATA_NAME, msgspec.json.encode(metadata))
            next_key.unlink()
            (self._folder / FAILURE_NAME).unlink(missing_ok=True)
        except OSError as error:
            raise CertificateError(
                f"Can't store the certificate in {self._folder}: {error.strerror}"
            ) from error
        self._metadata, self._failure = metadata, None

    def remove(self) -> None:
        """Delete it, before this appliance is enrolled again."""
        for name in _ALL_NAMES:
            (self._folder / name).unlink(missing_ok=True)
        self._metadata = self._failure = None


class ConfiguredCertificate:
    """The validity of `client_certificate_file`, which someone else renews."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._validity: Validity | None = None

    def step(self) -> float:
        """Read the file if it has changed; return the seconds until the next check."""
        try:
            state = self._path.stat()
            stamp = (state.st_mtime_ns, state.st_ino)
            if stamp != self._stamp:
                self._validity = read_validity(self._path)
                self._stamp = stamp
        except (OSError, CertificateError) as error:  # it is just being replaced
            log.debug("can't read client_certificate_file: %s", error)
        return CHECK_INTERVAL_SECONDS

    def remaining_seconds(self, now: datetime) -> float | None:
        """Return how long it is still valid; None before the first check."""
        return None if self._validity is None else self._validity.remaining_seconds(now)


@dataclass(frozen=True, slots=True)
class Validity:
    """The validity period of a certificate."""

    begins_at: datetime
    ends_at: datetime

    @property
    def lifetime_seconds(self) -> float:
        """The whole period."""
        return (self.ends_at - self.begins_at).total_seconds()

    def remaining_seconds(self, now: datetime) -> float:
        """Return how long it is still valid; negative once expired."""
        return (self.ends_at - now).total_seconds()


def read_validity(certificate_file: Path) -> Validity:
    """Return the validity period of the first certificate in a PEM file.

    Raises:
        CertificateError: it can't be read.
    """
    from cryptography import x509  # noqa: PLC0415 - 5 MiB that agents without certificates save

    try:
        certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
    except (OSError, ValueError) as error:
        raise CertificateError(f"Can't read {certificate_file}: {error}") from error
    return Validity(certificate.not_valid_before_utc, certificate.not_valid_after_utc)


def create_key_and_request(key_file: Path) -> str:
    """Create a P-256 key in a file and return a certificate signing request for it, as PEM.

    Raises:
        CertificateError: the key can't be stored.
    """
    from cryptography import x509  # noqa: PLC0415 - see above
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    try:
        replace_file(key_file, pem)
    except OSError as error:
        raise CertificateError(f"Can't write the key {key_file}: {error.strerror}") from error
    # The portal chooses the subject.
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    signed = request.sign(key, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM).decode()


def load_renewal_failure(data_dir: Path) -> RenewalFailure | None:
    """Return the stored renewal failure; None if the last renewal succeeded."""
    return load_json(data_dir / FAILURE_NAME, RenewalFailure)


def portal_authority_files(data_dir: Path) -> tuple[Path, ...]:
    """Return the authorities trusted beside the system's, once the first file exists.

    The first is the authority of the portal's own certificate, the second comes with each client
    certificate.
    """
    return data_dir / PORTAL_AUTHORITY_NAME, data_dir / AUTHORITIES_NAME


def store_portal_authority(pem: str, *, data_dir: Path) -> None:
    """Trust the authority of the portal's certificate from now on.

    Raises:
        EnrollmentError: the folder isn't writable.
    """
    path = data_dir / PORTAL_AUTHORITY_NAME
    try:
        replace_file(path, pem.encode())
    except OSError as error:
        raise EnrollmentError(f"Can't write {path}: {error.strerror}") from error
