"""Whether the server of these settings runs on this host, and is healthy.

python -m cli.server_health    # the exit code is 1 if it does not answer, for containers
"""

import json
import ssl
import sys
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection

from cli.listen_address import local_address
from core.settings import ServerSettings, load_server_settings

HEALTH_SECONDS = 5.0


def server_problem(settings: ServerSettings, path: str = "/health") -> str | None:
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
            connection.request("GET", path)
            answer = connection.getresponse()
            if answer.status == HTTPStatus.OK:
                return None
            return str(json.loads(answer.read())["message"])
        except (OSError, HTTPException, ValueError, KeyError):
            return ""  # not listening yet


if __name__ == "__main__":
    sys.exit(server_problem(load_server_settings(), "/healthz") is not None)
