"""The CA of the portal's own certificate, if systems don't know it.

The enrollment command contains the SHA-256 of this CA; the agent fetches the CA from the portal and
compares. The operator sets it (`tls_authority_file`), or the file of the server's certificate
contains a self-signed one.
"""

from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from core.errors import ConfigurationError
from core.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class AdvertisedCA:
    """A CA: its certificate in PEM format, and the SHA-256 of its DER form in lower case hex."""

    pem: str
    sha256: str


def advertised_ca(settings: ServerSettings) -> AdvertisedCA | None:
    """Return the CA that agents need; None if the certificate's CA is public.

    Raises:
        ConfigurationError: a file can't be used.
    """
    if settings.tls_authority_file is not None:
        certificates = _certificates(settings.tls_authority_file, setting="tls_authority_file")
        return _advertised(certificates[0])
    if settings.tls_certificate_file is None:
        return None
    certificates = _certificates(settings.tls_certificate_file, setting="tls_certificate_file")
    roots = [
        certificate for certificate in certificates if certificate.issuer == certificate.subject
    ]
    return _advertised(roots[-1]) if roots else None


def _certificates(path: Path, *, setting: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        error_text = f"{setting} {path} can't be read: {error.strerror}"
    except ValueError:
        error_text = f"{setting} {path} contains no certificate in PEM format"
    raise ConfigurationError([error_text], source="The configuration")


def _advertised(certificate: x509.Certificate) -> AdvertisedCA:
    return AdvertisedCA(
        pem=certificate.public_bytes(serialization.Encoding.PEM).decode(),
        sha256=certificate.fingerprint(hashes.SHA256()).hex(),
    )
