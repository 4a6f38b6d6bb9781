"""A real MariaDB server (Debian package mariadb-server) on a free port and in a scratch folder."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pymysql

from tests.fixtures.polling import eventually
from tests.servers import free_port, require_program, running

START_SECONDS = 60


@contextmanager
def mariadb_server(folder: Path) -> Iterator[str]:
    """Run a server for the length of the block; give the SQLAlchemy URL of its empty database."""
    server = require_program("mariadbd", package="mariadb-server")
    install = require_program("mariadb-install-db", package="mariadb-server")
    data, socket_path = folder / "data", folder / "mysqld.sock"
    # MariaDB runs as root only when told so; others can't name a user at all.
    as_root = ["--user=root"] if os.geteuid() == 0 else []
    port = free_port()
    subprocess.run(
        [install, "--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal",
         "--skip-test-db", *as_root],
        check=True, capture_output=True,
    )  # fmt: skip
    argv = [
        server, "--no-defaults", f"--datadir={data}", f"--socket={socket_path}", f"--port={port}",
        "--bind-address=127.0.0.1", f"--pid-file={folder / 'mysqld.pid'}", *as_root,
        "--skip-name-resolve", "--innodb-flush-log-at-trx-commit=0", "--skip-log-bin",
    ]  # fmt: skip
    with running(argv, log_path=folder / "mysqld.log"):
        eventually(
            lambda: _create_database(port), within_seconds=START_SECONDS, what="MariaDB to answer"
        )
        yield f"mysql+pymysql://root@127.0.0.1:{port}/vedette?charset=utf8mb4"


def _create_database(port: int) -> bool:
    try:
        connection = pymysql.connect(host="127.0.0.1", port=port, user="root")
    except pymysql.err.OperationalError:
        return False
    with connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS vedette CHARACTER SET utf8mb4")
    return True
