"""Real time series databases (Debian packages influxdb and victoria-metrics) on free ports."""

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import requests

from tests.fixtures.polling import eventually
from tests.servers import free_port, require_program, running

INFLUXDB = """
reporting-disabled = true
bind-address = "127.0.0.1:{rpc_port}"
[meta]
dir = "{folder}/meta"
[data]
dir = "{folder}/data"
wal-dir = "{folder}/wal"
[http]
bind-address = "127.0.0.1:{port}"
auth-enabled = {auth}
log-enabled = false
"""


@contextmanager
def influxdb(folder: Path, *, with_auth: bool = False) -> Iterator[str]:
    """Run InfluxDB 1.6 for the length of the block; give its address."""
    port = free_port()
    with influxdb_process(folder, port=port, with_auth=with_auth):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def influxdb_process(
    folder: Path, *, port: int, with_auth: bool = False, settings: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run InfluxDB 1.6 on a port for the length of the block; give its process.

    `settings` are environment variables that change its configuration.
    """
    program = require_program("influxd", package="influxdb")
    configuration = folder / "influxdb.conf"
    configuration.write_text(
        INFLUXDB.format(
            folder=folder, port=port, rpc_port=free_port(), auth="true" if with_auth else "false"
        )
    )
    url = f"http://127.0.0.1:{port}"
    with running(
        [program, "-config", str(configuration)],
        log_path=folder / "influxdb.log",
        environ={**os.environ, **(settings or {})},
    ) as process:
        eventually(lambda: answers(f"{url}/ping"), within_seconds=60, what="InfluxDB to answer")
        yield process


@contextmanager
def victoria_metrics(
    folder: Path, *, port: int | None = None, options: Sequence[str] = ()
) -> Iterator[str]:
    """Run VictoriaMetrics for the length of the block; give its address."""
    program = require_program("victoria-metrics", package="victoria-metrics")
    port = port or free_port()
    url = f"http://127.0.0.1:{port}"
    argv = [
        program,
        f"-storageDataPath={folder / 'data'}",
        f"-httpListenAddr=127.0.0.1:{port}",
        "-search.latencyOffset=0s",
        "-dedup.minScrapeInterval=1ms",
        "-retentionPeriod=100y",
        "-memory.allowedBytes=128MB",
        *options,
    ]
    with running(argv, log_path=folder / "victoria-metrics.log"):
        eventually(
            lambda: answers(f"{url}/health"), within_seconds=60, what="VictoriaMetrics to answer"
        )
        yield url


def answers(url: str) -> bool:
    """Return whether a server is up."""
    try:
        return requests.get(url, timeout=10).ok
    except requests.RequestException:
        return False
