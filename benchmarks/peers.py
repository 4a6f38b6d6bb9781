"""The servers that a load goes to: Vedette, InfluxDB 1.6 and VictoriaMetrics, each in its folder.

InfluxDB has its defaults, but for its logs of requests and its monitoring of itself, which are off.
VictoriaMetrics shows samples at once and drops repeated ones, as our store on it asks.
"""

import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import gateway as gateways
from benchmarks.processes import (
    answers,
    free_port,
    replies,
    require_program,
    running,
    wait_until,
)

VEDETTE = "vedette"
UNBATCHED = "vedette_unbatched"
INFLUXDB = "influxdb"
VICTORIAMETRICS = "victoriametrics"
SERVERS = (VEDETTE, UNBATCHED, INFLUXDB, VICTORIAMETRICS)
DATABASE = "bench"
_INFLUXDB = """
reporting-disabled = true
bind-address = "127.0.0.1:{rpc_port}"
[meta]
dir = "{folder}/meta"
[data]
dir = "{folder}/data"
wal-dir = "{folder}/wal"
query-log-enabled = false
[http]
bind-address = "127.0.0.1:{port}"
log-enabled = false
max-row-limit = 0
[monitor]
store-enabled = false
[logging]
level = "warn"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that runs.

    Attributes:
        write_path: where bodies are posted.
        senders: `Authorization` of each sender; none where the server asks for none.
        files: what its samples lie in.
    """

    name: str
    pid: int
    port: int
    write_path: str
    senders: Sequence[str] = ()
    files: Path

    @property
    def url(self) -> str:
        """The server's address."""
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def serving(
    name: str, folder: Path, *, appliances: int, has_rules: bool = False
) -> Iterator[Server]:
    """Run one of the servers for the length of the block; Vedette can evaluate the rule pack."""
    folder.mkdir(parents=True, exist_ok=True)
    if name in {VEDETTE, UNBATCHED}:
        is_batching = name == VEDETTE
        with vedette(
            folder, appliances=appliances, is_batching=is_batching, has_rules=has_rules
        ) as server:
            yield server
    elif name == INFLUXDB:
        with influxdb(folder) as server:
            yield server
    else:
        with victoriametrics(folder) as server:
            yield server


@contextmanager
def vedette(
    folder: Path, *, appliances: int, is_batching: bool = True, has_rules: bool = False
) -> Iterator[Server]:
    """Run a Vedette server with an enrolled fleet, with or without batching of small posts."""
    environ = gateways.NO_HEARTBEATS | ({} if has_rules else gateways.NO_RULES)
    gateway = gateways.make_gateway(folder, extra_environ=environ)
    members = gateways.enroll_fleet(gateway, appliances)
    module = "cli.main" if is_batching else "benchmarks.unbatched_server"
    with gateways.serving(gateway, module=module) as pid:
        yield Server(
            name=VEDETTE if is_batching else UNBATCHED,
            pid=pid,
            port=gateway.port,
            write_path="/api/v2/write?org=bench&bucket=bench&precision=ns",
            senders=[f"Token {member.secret}" for member in members],
            files=gateway.samples_path,
        )


@contextmanager
def influxdb(folder: Path, *, environ: Mapping[str, str] | None = None) -> Iterator[Server]:
    """Run InfluxDB 1.6 with a database; `environ` changes its configuration."""
    program, port = require_program("influxd", package="influxdb"), free_port()
    configuration, log_path = folder / "influxdb.conf", folder / "influxdb.log"
    text = _INFLUXDB.format(folder=folder, port=port, rpc_port=free_port())
    configuration.write_text(text, encoding="utf-8")
    argv = [program, "-config", str(configuration)]
    with running(argv, log_path=log_path, environ=environ) as pid:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: replies(f"{url}/ping"), what="InfluxDB to answer", log_path=log_path)
        query = urllib.parse.urlencode({"q": f"CREATE DATABASE {DATABASE}"})
        with urllib.request.urlopen(f"{url}/query", query.encode(), timeout=30):
            pass
        yield Server(
            name=INFLUXDB,
            pid=pid,
            port=port,
            write_path=f"/write?db={DATABASE}&precision=ns",
            files=folder,
        )


@contextmanager
def victoriametrics(folder: Path) -> Iterator[Server]:
    """Run a single VictoriaMetrics."""
    program = require_program("victoria-metrics", package="victoria-metrics")
    port, log_path = free_port(), folder / "victoria-metrics.log"
    argv = [
        program,
        f"-storageDataPath={folder / 'data'}",
        f"-httpListenAddr=127.0.0.1:{port}",
        "-search.latencyOffset=0s",
        "-dedup.minScrapeInterval=1ms",
    ]
    with running(argv, log_path=log_path) as pid:
        url = f"http://127.0.0.1:{port}"
        wait_until(
            lambda: answers(f"{url}/health"), what="VictoriaMetrics to answer", log_path=log_path
        )
        yield Server(
            name=VICTORIAMETRICS,
            pid=pid,
            port=port,
            write_path="/write?precision=ns",
            files=folder / "data",
        )
