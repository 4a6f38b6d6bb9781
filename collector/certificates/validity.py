"""From when and until when a certificate is good, read in a process of its own.

    python -m collector.certificates.validity CERTIFICATE_FILE

prints the two instants in seconds since 1970. It is a process because what it takes to read a
certificate would stay in the agent's memory.
"""

import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from collector.errors import CertificateError

TIME_LIMIT_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Validity:
    """The time for which a certificate was made out."""

    begins_at: datetime
    ends_at: datetime

    @property
    def lifetime_seconds(self) -> float:
        """How long it is good in all."""
        return (self.ends_at - self.begins_at).total_seconds()

    def remaining_seconds(self, now: datetime) -> float:
        """Return how long it is good for yet; less than 0 when it ran out."""
        return (self.ends_at - now).total_seconds()


def validity_of(certificate_file: Path) -> Validity:
    """Return from when until when the first certificate in a PEM file is good.

    Raises:
        CertificateError: it can't be read; says why.
    """
    try:
        told = subprocess.run(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", "collector.certificates.validity", str(certificate_file)],
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CertificateError(f"{certificate_file} can't be looked at: {error}") from error
    if told.returncode:
        lines = told.stderr.strip().splitlines() or [f"it ended with {told.returncode}"]
        raise CertificateError(f"{certificate_file} can't be read: {lines[-1]}")
    begins_at, ends_at = (datetime.fromtimestamp(float(at), UTC) for at in told.stdout.split())
    return Validity(begins_at, ends_at)


def main(certificate_file: Path) -> str:
    """Return from when and until when a certificate is good, in seconds since 1970."""
    from cryptography import x509  # noqa: PLC0415 - not in the process that asks

    certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
    begins_at, ends_at = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return f"{begins_at.timestamp():.0f} {ends_at.timestamp():.0f}"


if __name__ == "__main__":
    sys.stdout.write(main(Path(sys.argv[1])))
