"""A real nginx (Debian package nginx-light) before a server, asking for a client certificate."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fixtures.certificates import Pair
from tests.fixtures.polling import eventually
from tests.house import House
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

SHIPPED = Path(__file__).resolve().parents[2] / "deploy" / "nginx" / "vedette.conf"
PROXY_SECRET = "a secret that nginx and the portal share"
AROUND_SHIPPED = """
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
    include {folder}/vedette.conf;
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


@contextmanager
def shipped_nginx(
    folder: Path, *, house: House, server: Pair, proxy_secret: str = PROXY_SECRET
) -> Iterator[str]:
    """Run nginx with the configuration that is shipped, before a house; give its address.

    Paths, ports and the upstream are replaced; whom it trusts is what `vedette ca show` prints.
    """
    program = require_program("nginx", package="nginx-light")
    folder.mkdir()
    trusted = house.vedette("ca", "show", "--output", str(folder / "agents-ca.pem"))
    assert trusted.returncode == 0, trusted.stderr
    (folder / "proxy-secret.conf").write_text(
        f'proxy_set_header X-Vedette-Proxy "{proxy_secret}";\n'
    )
    port, plain_port = free_port(), free_port()
    shipped = SHIPPED.read_text(encoding="utf-8")
    for written, here in {
        "listen 80;": f"listen 127.0.0.1:{plain_port};",
        "listen 443 ssl;": f"listen 127.0.0.1:{port} ssl;",
        "server 127.0.0.1:8000;": f"server 127.0.0.1:{house.port};",
        "/etc/vedette/tls/portal.pem": str(server.certificate),
        "/etc/vedette/tls/portal.key": str(server.key),
        "/etc/vedette/": f"{folder}/",
    }.items():
        assert written in shipped, f"{SHIPPED} holds no {written!r}"
        shipped = shipped.replace(written, here)
    (folder / "vedette.conf").write_text(shipped, encoding="utf-8")
    configuration = folder / "nginx.conf"
    configuration.write_text(AROUND_SHIPPED.format(folder=folder), encoding="utf-8")
    argv = [program, "-p", str(folder), "-c", str(configuration), "-e", str(folder / "start.log")]
    with running(argv, log_path=folder / "nginx.log"):
        eventually(lambda: _listens(port), what="nginx to listen")
        yield f"https://127.0.0.1:{port}"


def reload_nginx(folder: Path) -> None:
    """Have a running nginx read its files again."""
    os.kill(int((folder / "nginx.pid").read_text()), signal.SIGHUP)
