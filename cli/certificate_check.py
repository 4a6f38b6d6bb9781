"""The check of the certificate with which the server terminates TLS itself."""

import ipaddress
import ssl
from urllib.parse import urlsplit

from cryptography import x509

from cli.database_checks import Check
from core.clock import Clock, utc_now
from core.database_checks import Problem
from core.settings import ServerSettings


def check_certificate(settings: ServerSettings, *, clock: Clock = utc_now) -> Check:
    """Check that the server's user can use certificate and key, and that the host's name fits."""
    path, host = settings.tls_certificate_file, urlsplit(settings.resolved_public_url).hostname
    if path is None or host is None:
        return Check("certificate", "not configured: TLS ends at a proxy, if there is TLS")
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # Without the callback, an encrypted key prompts for its password on the terminal.
        context.load_cert_chain(path, settings.tls_key_file, password=lambda: "")
        certificate = x509.load_pem_x509_certificates(path.read_bytes())[0]
        names = _host_names(certificate)
    except (OSError, ValueError) as error:
        problem = Problem(
            f"tls_certificate_file {path} or tls_key_file {settings.tls_key_file} can't be used: "
            f"{getattr(error, 'strerror', None) or error}.",
            "Correct the files; the server's user must be able to read both.",
        )
        return Check("certificate", "", (problem,))
    if certificate.not_valid_after_utc <= clock():
        problem = Problem(
            f"The certificate expired on {certificate.not_valid_after_utc:%Y-%m-%d}: browsers and "
            "agents refuse it.",
            "Renew it; a running server loads the new one by itself. Of the portal's own CA: "
            f"vedette ca server-certificate {host}",
            is_fatal=False,
        )
        return Check("certificate", str(path), (problem,))
    if any(_matches(name, host) for name in names):
        return Check("certificate", f"{path}, of {', '.join(names)}")
    problem = Problem(
        f"The certificate is of {', '.join(names) or 'no host'}, not of {host}: browsers and "
        "agents refuse it.",
        "Get one with this name, or correct public_url.",
        is_fatal=False,
    )
    return Check("certificate", str(path), (problem,))


def _host_names(certificate: x509.Certificate) -> list[str]:
    """Return the DNS names and IP addresses that a certificate is for."""
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    addresses = extension.value.get_values_for_type(x509.IPAddress)
    return [*extension.value.get_values_for_type(x509.DNSName), *map(str, addresses)]


def _matches(name: str, host: str) -> bool:
    """Return whether a certificate's name is that of a host; `*` stands for one label."""
    try:
        return ipaddress.ip_address(name) == ipaddress.ip_address(host)
    except ValueError:
        pass
    first, _, rest = name.lower().partition(".")
    if first == "*":
        return host.lower().partition(".")[2] == rest
    return name.lower() == host.lower()
