"""From when and until when a certificate is good, read in a process of its own.

    python -m collector.certificates.validity CERTIFICATE_FILE

prints the two instants in seconds since 1970.
"""

import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from collector.certificates.apart import run_apart


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
    told = run_apart(
        "collector.certificates.validity",
        certificate_file,
        failed=f"{certificate_file} can't be read",
    )
    begins_at, ends_at = (datetime.fromtimestamp(float(at), UTC) for at in told.split())
    return Validity(begins_at, ends_at)


def main(certificate_file: Path) -> str:
    """Return from when and until when a certificate is good, in seconds since 1970."""
    from cryptography import x509  # noqa: PLC0415 - not in the process that asks

    certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
    begins_at, ends_at = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return f"{begins_at.timestamp():.0f} {ends_at.timestamp():.0f}"


if __name__ == "__main__":
    sys.stdout.write(main(Path(sys.argv[1])))
