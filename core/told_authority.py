"""Who signed the portal's own certificate, where the world does not know it.

An agent that joins is told the SHA-256 of that authority in its command, fetches the authority
itself from the portal, and compares. The operator names it (`tls_authority_file`), or it stands in
the file of the server's certificate: a certificate that signed itself.
"""

from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from core.errors import ConfigurationError
from core.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class ToldAuthority:
    """An authority as agents are told of it.

    Attributes:
        pem: its certificate.
        sha256: of its DER form, in lower case hex.
    """

    pem: str
    sha256: str


def told_authority(settings: ServerSettings) -> ToldAuthority | None:
    """Return the authority that agents must be told, or None where every system knows it.

    Raises:
        ConfigurationError: a file can't be used.
    """
    if settings.tls_authority_file is not None:
        found = _certificates(settings.tls_authority_file, setting="tls_authority_file")
        return _told(found[0])
    if settings.tls_certificate_file is None:
        return None
    found = _certificates(settings.tls_certificate_file, setting="tls_certificate_file")
    roots = [one for one in found if one.issuer == one.subject]
    return _told(roots[-1]) if roots else None


def _certificates(path: Path, *, setting: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        fault = f"{setting} {path} can't be read: {error.strerror}"
    except ValueError:
        fault = f"{setting} {path} holds no certificate in PEM form"
    raise ConfigurationError([fault], source="The configuration")


def _told(certificate: x509.Certificate) -> ToldAuthority:
    return ToldAuthority(
        pem=certificate.public_bytes(serialization.Encoding.PEM).decode(),
        sha256=certificate.fingerprint(hashes.SHA256()).hex(),
    )
