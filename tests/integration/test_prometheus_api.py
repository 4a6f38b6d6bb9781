"""The API that Prometheus' own tools read: promtool, a Prometheus that federates, and Grafana."""

import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import requests

from core.clock import NS_PER_SECOND, to_ns, utc_now
from core.db import SessionFactory, transaction
from core.settings import ServerSettings
from tenants.models import User
from tenants.users.tokens import create_api_token
from tests.cast import Cast, scope_of
from tests.fixtures.polling import eventually
from tests.fixtures.prometheus import PACKAGE, prometheus
from tests.fixtures.serving import serving_flask
from tests.fixtures.shared_portal import Serve
from tests.servers import require_program
from timeseries.points import Point
from timeseries.store import Store, write

Ask = Callable[..., requests.Response]


@pytest.fixture
def samples(store: Store, cast: Cast) -> None:
    """Write a minute of samples of two tenants up to now."""
    start = utc_now() - timedelta(seconds=60)
    for tenant, appliance, watts in (
        (cast.acme.id, "dgx-1", 300.0),
        (cast.globex.id, "other-1", 900.0),
    ):
        points = [
            Point(
                "gpu",
                {"gpu": gpu},
                {"power_watts": watts + int(gpu), "energy_joules": float(seconds)},
                to_ns(start) + seconds * NS_PER_SECOND,
            )
            for seconds in range(0, 60, 10)
            for gpu in ("0", "1")
        ]
        write(store, points, identity={"tenant": tenant, "appliance": appliance})


@pytest.fixture
def url(serve: Serve, tmp_path: Path, samples: None) -> Iterator[str]:
    """The address of the API on a portal."""
    assert samples is None
    with serving_flask(serve(ServerSettings(data_dir=tmp_path), clock=utc_now)) as url:
        yield f"{url}/api/v1/prometheus"


@pytest.fixture
def secret_of(sessions: SessionFactory) -> Callable[[User], str]:
    def secret(user: User) -> str:
        with transaction(sessions) as session:
            return create_api_token(session, scope_of(user), name="prom", now=utc_now())[1]

    return secret


def promtool(url: str, secret: str, *arguments: str) -> str:
    program = require_program("promtool", package=PACKAGE)
    address = url.replace("http://", f"http://token:{secret}@")
    command = [program, "query", *arguments[:-1], address, arguments[-1]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_promtool_queries_the_tenant_of_its_token(
    url: str, cast: Cast, secret_of: Callable[[User], str]
) -> None:
    secret = secret_of(cast.alice)

    instant = promtool(url, secret, "instant", "sum by (appliance) (gpu_power_watts)")
    assert instant.startswith('{appliance="dgx-1"} => 601 @[')

    since = (utc_now() - timedelta(seconds=30)).timestamp()
    text = promtool(url, secret, "range", f"--start={since}", "--step=10s", "gpu_power_watts")
    assert {line.split(" =>")[0] for line in text.splitlines() if "=>" in line} == {
        'gpu_power_watts{appliance="dgx-1", gpu="0"}',
        'gpu_power_watts{appliance="dgx-1", gpu="1"}',
    }
    command = [require_program("promtool", package=PACKAGE), "query", "series"]
    address = url.replace("http://", f"http://token:{secret}@")
    series = subprocess.run(
        [*command, '--match={gpu="1"}', address], capture_output=True, text=True, check=True
    )
    assert sorted(series.stdout.splitlines()) == [
        '{__name__="gpu_energy_joules", appliance="dgx-1", gpu="1"}',
        '{__name__="gpu_power_watts", appliance="dgx-1", gpu="1"}',
    ]
    assert promtool(url, secret, "labels", "appliance") == "dgx-1\n"


def test_prometheus_federates(
    url: str, cast: Cast, secret_of: Callable[[User], str], tmp_path: Path
) -> None:
    host, _, path = url.removeprefix("http://").partition("/")
    scrape = f"""
- job_name: vedette
  honor_labels: true
  scrape_interval: 1s
  metrics_path: /{path}/federate
  params: {{'match[]': ['{{__name__=~"gpu_.+"}}']}}
  authorization: {{credentials: {secret_of(cast.alice)}}}
  static_configs: [{{targets: ['{host}']}}]
"""
    with prometheus(tmp_path, scrape=scrape) as federated:

        def total() -> list[Any]:
            answer = requests.get(
                f"{federated}/api/v1/query",
                params={"query": "sum by (appliance) (gpu_power_watts)"},
                timeout=30,
            ).json()
            result: list[Any] = answer["data"]["result"]
            return result

        eventually(lambda: bool(total()), within_seconds=60, what="samples to be scraped")
        ((row,),) = [total()]
        assert (row["metric"], row["value"][1]) == ({"appliance": "dgx-1"}, "601")


def test_grafana_s_requests_are_answered(
    url: str, cast: Cast, secret_of: Callable[[User], str]
) -> None:
    """Its data source sends forms, and parameters besides; recorded from Grafana 10 and 11."""
    browser = requests.Session()
    browser.auth = ("vedette", secret_of(cast.alice))
    now = int(utc_now().timestamp())

    health = browser.post(f"{url}/api/v1/query", data={"query": "1+1", "time": "4"}).json()
    assert health["data"] == {"resultType": "scalar", "result": [4, "2"]}
    info = browser.get(f"{url}/api/v1/status/buildinfo").json()["data"]
    assert info["version"].startswith("2.")
    charted = browser.post(
        f"{url}/api/v1/query_range",
        data={
            "query": 'avg by(gpu) (gpu_power_watts{appliance=~"dgx-1|x"})',
            "start": now - 30,
            "end": now,
            "step": 15,
        },
        headers={"X-Query-Tags": "Source=grafana", "X-Datasource-Uid": "abc"},
    ).json()["data"]
    assert charted["resultType"] == "matrix"
    assert [row["metric"] for row in charted["result"]] == [{"gpu": "0"}, {"gpu": "1"}]
    span = {"start": str(now - 3600), "end": str(now), "limit": "40000"}
    names = browser.get(f"{url}/api/v1/label/__name__/values", params=span).json()["data"]
    assert names == ["gpu_energy_joules", "gpu_power_watts"]
    listed = browser.post(f"{url}/api/v1/labels", data={**span, "match[]": "gpu_power_watts"})
    assert listed.json()["data"] == ["__name__", "appliance", "gpu"]
    values = browser.get(
        f"{url}/api/v1/label/gpu/values", params={**span, "match[]": "gpu_power_watts"}
    )
    assert values.json()["data"] == ["0", "1"]
    described = browser.get(f"{url}/api/v1/metadata", params={"limitPerMetric": 1}).json()["data"]
    (of_energy,) = described["gpu_energy_joules"]
    assert (of_energy["type"], of_energy["unit"]) == ("counter", "J")
    series = browser.post(
        f"{url}/api/v1/series", data={**span, "match[]": 'gpu_power_watts{gpu="0"}'}
    )
    assert series.json()["data"] == [
        {"__name__": "gpu_power_watts", "appliance": "dgx-1", "gpu": "0"}
    ]
    exemplars = browser.post(f"{url}/api/v1/query_exemplars", data={"query": "up", **span})
    assert exemplars.json() == {"status": "success", "data": []}


def test_a_token_is_needed(url: str) -> None:
    for auth in (None, ("vedette", "vdt_wrong")):
        answer = requests.get(f"{url}/api/v1/query", params={"query": "1"}, auth=auth, timeout=30)
        assert (answer.status_code, answer.json()["status"]) == (401, "error")
        assert answer.headers["WWW-Authenticate"].startswith("Basic")
