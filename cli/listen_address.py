"""The address that the server listens on."""

import socket
from ipaddress import ip_address

from core.errors import ConfigurationError


def local_address(host: str) -> str:
    """Return the address at which this host reaches a server that listens on `host`."""
    try:
        is_unspecified = ip_address(host).is_unspecified
    except ValueError:
        return host
    if not is_unspecified:
        return host
    return "::1" if ":" in host else "127.0.0.1"


def check_port(
    host: str, port: int, *, remedy: str = "Choose another with PORT=... (make) or VEDETTE_PORT=..."
) -> None:
    """Check that the port is free before anything else starts.

    Raises:
        ConfigurationError: it is not.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            fault = f"port {port} on {host} can't be used ({error.strerror}). {remedy}"
            raise ConfigurationError([fault], source="The configuration") from error
