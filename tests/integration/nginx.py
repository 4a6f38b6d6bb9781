"""A real nginx (Debian package nginx-light) before a server, asking for a client certificate."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fixtures.certificates import Pair
from tests.fixtures.polling import eventually
from tests.servers import free_port, require_program, running

CONFIGURATION = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_certificate {server.certificate};
        ssl_certificate_key {server.key};
        ssl_client_certificate {client_authority};
        ssl_verify_client on;
        location / {{ proxy_pass {upstream}; }}
    }}
}}
"""


@contextmanager
def nginx(folder: Path, *, upstream: str, server: Pair, client_authority: Path) -> Iterator[str]:
    """Run nginx for the length of the block; give its address."""
    program = require_program("nginx", package="nginx-light")
    port = free_port()
    folder.mkdir()
    configuration = folder / "nginx.conf"
    configuration.write_text(
        CONFIGURATION.format(
            folder=folder,
            port=port,
            server=server,
            client_authority=client_authority,
            upstream=upstream,
        )
    )
    argv = [program, "-p", str(folder), "-c", str(configuration), "-e", str(folder / "start.log")]
    with running(argv, log_path=folder / "nginx.log"):
        eventually(lambda: _listens(port), what="nginx to listen")
        yield f"https://127.0.0.1:{port}"


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
