"""Whether the server of these settings runs on this host, and is healthy."""

import json
import ssl
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection

from cli.listen_address import local_address
from core.settings import ServerSettings

HEALTH_SECONDS = 5.0


def server_problem(settings: ServerSettings) -> str | None:
    """Return why the server is not healthy; "" if it does not answer, None if it is healthy."""
    host, port = local_address(settings.host), settings.port
    if settings.tls_certificate_file is None:
        connection = HTTPConnection(host, port, timeout=HEALTH_SECONDS)
    else:
        # The certificate may have another name; no secret is sent, and no answer is trusted.
        unverified = ssl.create_default_context()
        unverified.check_hostname = False
        unverified.verify_mode = ssl.CERT_NONE
        connection = HTTPSConnection(host, port, timeout=HEALTH_SECONDS, context=unverified)
    with closing(connection):
        try:
            connection.request("GET", "/health")
            answer = connection.getresponse()
            if answer.status == HTTPStatus.OK:
                return None
            return str(json.loads(answer.read())["message"])
        except (OSError, HTTPException, ValueError, KeyError):
            return ""  # not listening yet
