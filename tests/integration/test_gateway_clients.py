"""Programs that know nothing of Vedette write through the gateway: curl, influxdb-client, collectd.

The server is a process of its own, behind nginx, which asks for a client certificate; what was
written is read back through the portal's API.
"""

import csv
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import requests
from influxdb_client.client.influxdb_client import InfluxDBClient
from influxdb_client.client.write_api import SYNCHRONOUS, WriteOptions

from collector.enrollment import enroll
from core.clock import to_ns, utc_now
from protocol.inventory import Inventory
from tests.deployment import ALICE, Deployment, api_token
from tests.fixtures.certificates import Pair
from tests.fixtures.nginx import Front
from tests.fixtures.polling import eventually
from tests.servers import require_program, running

HOUR = timedelta(hours=1)
CLIENTS = ("curl", "influx", "json", "command", "json-rates", "command-rates")
COLLECTD = """
Hostname "rack-7"
FQDNLookup false
BaseDir "{folder}"
PIDFile "{folder}/pid"
Interval 1
LoadPlugin logfile
LoadPlugin load
LoadPlugin cpu
LoadPlugin threshold
LoadPlugin write_http
<Plugin logfile>
  LogLevel info
  File "{folder}/log"
</Plugin>
<Plugin threshold>
  <Type "load">
    Persist true
    WarningMax -1
  </Type>
</Plugin>
<Plugin write_http>
{nodes}
</Plugin>
"""
NODE = """
  <Node "{name}">
    URL "{gateway.url}/collectd{query}"
    Format "{format}"
    CACert "{gateway.authority}"
    ClientCert "{gateway.own.certificate}"
    ClientKey "{gateway.own.key}"
    Header "Authorization: Bearer {token}"
    StoreRates {are_rates}
    Notifications true
    LogHttpError true
    BufferSize 512
  </Node>
"""


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running server behind nginx, what a client needs to come in, and a way to read back.

    `tokens` and `appliances` are the agents' tokens and appliances' ids by the client's name.
    """

    deployment: Deployment
    url: str
    authority: Path
    own: Pair
    tokens: Mapping[str, str]
    appliances: Mapping[str, str]
    api_token: str

    @property
    def certificates(self) -> list[str]:
        """Curl's options to come in."""
        files = self.authority, self.own.certificate, self.own.key
        options = ("--cacert", "--cert", "--key")
        return [str(word) for pair in zip(options, files, strict=True) for word in pair]

    def rows(self, measurement: str, client: str) -> list[dict[str, str]]:
        """Return what a client wrote, as the portal exports it."""
        reply = requests.get(
            f"{self.deployment.url}/api/v1/samples/export",
            params={
                "measurement": measurement,
                "since": (utc_now() - HOUR).isoformat(),
                "until": (utc_now() + HOUR).isoformat(),
            },
            headers={"Authorization": f"Bearer {self.api_token}"},
            timeout=60,
        )
        if reply.status_code == 404:
            return []
        assert reply.ok, reply.text
        rows = csv.DictReader(reply.text.splitlines())
        return [row for row in rows if row["appliance"] == self.appliances[client]]


@pytest.fixture(scope="module")
def gateway(front: Front, tmp_path_factory: pytest.TempPathFactory) -> Gateway:
    folder = tmp_path_factory.mktemp("gateway")
    identities = {
        name: enroll(
            portal_url=front.deployment.url,
            token=front.deployment.enrollment_secret("acme"),
            name=name,
            inventory=Inventory(hostname=name),
            data_dir=folder / name,
        )
        for name in CLIENTS
    }
    return Gateway(
        front.deployment,
        front.url,
        front.authority.certificate,
        front.authority.issue("client"),
        {name: identity.agent_token for name, identity in identities.items()},
        {name: identity.appliance_id for name, identity in identities.items()},
        api_token(front.deployment, ALICE),
    )


@pytest.fixture(scope="module")
def collectd(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of collectd, which wrote in every format until all had arrived."""
    program = require_program("collectd", package="collectd-core")
    folder = tmp_path_factory.mktemp("collectd")
    nodes = "".join(
        NODE.format(
            name=name,
            gateway=gateway,
            token=gateway.tokens[name],
            format="JSON" if name.startswith("json") else "Command",
            query="?rates=true" if name.endswith("rates") else "",
            are_rates="true" if name.endswith("rates") else "false",
        )
        for name in CLIENTS[2:]
    )
    path = folder / "collectd.conf"
    path.write_text(COLLECTD.format(folder=folder, nodes=nodes))
    with running([program, "-f", "-C", str(path)], log_path=folder / "output"):
        for name in CLIENTS[2:]:
            for measurement in ("collectd_load", "collectd_cpu", "notification"):
                eventually(
                    partial(gateway.rows, measurement, name),
                    within_seconds=60,
                    every_seconds=0.5,
                    what=f"{measurement} from {name}",
                )
    return folder / "log"


def curl(*arguments: str, body: str = "") -> tuple[int, dict[str, str], str]:
    """Run curl with a body on standard input; return status, headers and body."""
    program = require_program("curl", package="curl")
    done = subprocess.run(
        [program, "--silent", "--include", "--max-time", "20", *arguments],
        input=body,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    head, _, content = done.stdout.partition("\n\n")
    status, *lines = head.splitlines()
    pairs = (line.partition(":") for line in lines)
    return int(status.split()[1]), {k.lower(): v.strip() for k, _, v in pairs}, content


def test_curl_writes_in_both_manners_of_influxdb(gateway: Gateway) -> None:
    now_seconds = to_ns(utc_now()) // 10**9
    v2 = f"{gateway.url}/api/v2/write?org=any&bucket=any&precision=s"
    v1 = f"{gateway.url}/write?db=any&rp=any&precision=s"
    data = (*gateway.certificates, "--data-binary", "@-")
    authorization = f"Authorization: Token {gateway.tokens['curl']}"
    good, bad = f"load load1=0.5 {now_seconds}\n", "load load1=\n"

    assert curl(*data, "-H", authorization, v2, body=good)[0] == 204
    status, headers, content = curl(*data, "-H", authorization, v2, body=bad + good)
    assert (status, headers["x-platform-error-code"]) == (400, "invalid")
    answer = json.loads(content)
    assert (answer["code"], answer["line"]) == ("invalid", 1)

    user = ("--user", f"any:{gateway.tokens['curl']}")
    assert curl(*data, *user, v1, body=good)[0] == 204
    status, headers, content = curl(*data, *user, v1, body=bad + good)
    assert status == 400
    assert json.loads(content)["error"] == headers["x-influxdb-error"]
    assert headers["x-influxdb-error"].endswith("dropped=1")

    status, headers, _ = curl(*gateway.certificates, f"{gateway.url}/ping")
    assert (status, headers["x-influxdb-version"]) == (204, "1.8.0")


def test_the_influx_client_writes_at_once_and_in_batches(gateway: Gateway) -> None:
    now_ns = to_ns(utc_now())
    points = [
        {
            "measurement": "gpu",
            "tags": {"gpu": str(n % 8)},
            "fields": {"power_watts": float(n)},
            "time": now_ns + n,
        }
        for n in range(2_000)
    ]
    batching = WriteOptions(batch_size=500, flush_interval=500)
    with InfluxDBClient(
        url=gateway.url,
        token=gateway.tokens["influx"],
        org="any",
        enable_gzip=True,
        ssl_ca_cert=str(gateway.authority),
        cert_file=str(gateway.own.certificate),
        cert_key_file=str(gateway.own.key),
    ) as client:
        assert client.ping()
        with client.write_api(write_options=SYNCHRONOUS) as api:
            api.write(bucket="any", record=points[:1_000])
        with client.write_api(write_options=batching) as api:
            api.write(bucket="any", record=points[1_000:])
    written = sorted(float(row["power_watts"]) for row in gateway.rows("gpu", "influx"))
    assert written == [float(n) for n in range(2_000)]


@pytest.mark.parametrize(
    ("client", "field"),
    [
        ("json", "value_total"),
        ("command", "value_total"),
        ("json-rates", "value_per_second"),
        ("command-rates", "value_per_second"),
    ],
)
def test_collectd_writes_over_tls_with_a_client_certificate(
    gateway: Gateway, collectd: Path, client: str, field: str
) -> None:
    assert "HTTP" not in collectd.read_text(encoding="utf-8")
    cpu = gateway.rows("collectd_cpu", client)
    assert {(row["type"], row["host"]) for row in cpu} == {("cpu", "rack-7")}
    assert {"idle", "user"} <= {row["type_instance"] for row in cpu}
    assert any(float(row[field] or 0) > 0 for row in cpu)
    load = gateway.rows("collectd_load", client)[0]
    assert all(float(load[name]) >= 0 for name in ("shortterm", "midterm", "longterm"))
    event = gateway.rows("notification", client)[0]
    assert (event["severity"], event["events"]) == ("warning", "1")
    assert "rack-7" in event["message"]
