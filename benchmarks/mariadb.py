"""A MariaDB server (Debian package mariadb-server) on a free port and in a scratch folder."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pymysql
from pymysql.cursors import Cursor

from benchmarks.processes import free_port, require_program, running, wait_until

BUFFER_POOL = "512M"


@dataclass(frozen=True, slots=True)
class MariaDB:
    """A server that runs."""

    port: int

    def database(self, name: str) -> str:
        """Make an empty database; return its SQLAlchemy URL."""
        with _connected(self.port) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")
        return f"mysql+pymysql://root@127.0.0.1:{self.port}/{name}?charset=utf8mb4"


@contextmanager
def mariadb(folder: Path) -> Iterator[MariaDB]:
    """Run a server for the length of the block; it syncs every commit, as it does by default."""
    server = require_program("mariadbd", package="mariadb-server")
    install = require_program("mariadb-install-db", package="mariadb-server")
    data, log_path, port = folder / "mariadb", folder / "mariadb.log", free_port()
    as_root = ["--user=root"] if os.geteuid() == 0 else []
    subprocess.run(
        [
            install,
            "--no-defaults",
            f"--datadir={data}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            *as_root,
        ],
        check=True,
        capture_output=True,
    )
    argv = [
        server,
        "--no-defaults",
        f"--datadir={data}",
        f"--socket={folder / 'mariadb.sock'}",
        f"--port={port}",
        "--bind-address=127.0.0.1",
        f"--pid-file={folder / 'mariadb.pid'}",
        *as_root,
        "--skip-name-resolve",
        "--skip-log-bin",
        f"--innodb-buffer-pool-size={BUFFER_POOL}",
    ]
    with running(argv, log_path=log_path):
        wait_until(lambda: _answers(port), what="MariaDB to answer", log_path=log_path)
        yield MariaDB(port)


def _answers(port: int) -> bool:
    try:
        _connected(port).close()
    except pymysql.err.OperationalError:
        return False
    return True


def _connected(port: int) -> "pymysql.Connection[Cursor]":
    return pymysql.connect(host="127.0.0.1", port=port, user="root")
