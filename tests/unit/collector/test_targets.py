"""What goes over the wire: tags, proxies, and how little of the client is loaded for it."""

import subprocess
import sys
from pathlib import Path

import pytest

from collector.sending.connections import proxy_for, proxy_headers
from collector.sending.influxdb_target import line_stamper
from collector.sending.undeliverable import UndeliverableLines
from core.clock import utc_now
from timeseries.lineprotocol import encode, parse
from timeseries.points import Point

ROOT = Path(__file__).parents[3]
TAGS = {"appliance": "dgx 1", "site": "a,b=c\\d"}


@pytest.mark.parametrize(
    "point",
    [
        Point("cpu", {}, {"usage_percent": 1.5}, 17),
        Point("cpu core", {"core": "0"}, {"usage_percent": 1.5}, 17),
        Point("a,b\\c", {"x": "y z"}, {"v": 1}, 17),
        Point("log", {"x": "y"}, {"text": 'two\nlines, "quoted" = \\ 1'}, 17),
    ],
    ids=["plain", "space", "escapes", "newline"],
)
def test_every_line_is_stamped_and_otherwise_as_it_was(point: Point) -> None:
    lines = encode([point, point]).rstrip(b"\n")
    stamped = parse(line_stamper(TAGS)(lines), default_time_ns=0)
    assert stamped.errors == []
    expected = Point(point.measurement, {**TAGS, **point.tags}, point.fields, point.time_ns)
    assert stamped.points == [expected, expected]


@pytest.mark.parametrize(
    ("url", "environ", "proxy"),
    [
        ("https://p.example.com/x", {"https_proxy": "http://proxy:3128"}, "http://proxy:3128"),
        ("https://p.example.com/x", {"HTTPS_PROXY": "proxy:3128"}, "http://proxy:3128"),
        ("http://p.example.com/x", {"https_proxy": "http://proxy:3128"}, None),
        ("https://p.example.com", {"https_proxy": "http://x", "no_proxy": "a,.example.com"}, None),
        ("https://p.example.com", {"https_proxy": "http://x", "NO_PROXY": "*"}, None),
        ("https://p.example.com", {"https_proxy": "x", "no_proxy": "ample.com"}, "http://x"),
    ],
)
def test_a_proxy_is_taken_from_the_environment(
    url: str, environ: dict[str, str], proxy: str | None
) -> None:
    assert proxy_for(url, environ) == proxy


def test_a_proxys_credentials_are_sent_to_it() -> None:
    assert proxy_headers("http://user:pass@proxy:3128") == {
        "proxy-authorization": "Basic dXNlcjpwYXNz"
    }


def test_a_write_loads_no_more_of_the_client_than_it_takes() -> None:
    script = (
        "import sys\n"
        "from collector.sending.targets import APITarget\n"
        "answer = APITarget(token='t', timeout_seconds=1).write('http://127.0.0.1:9', b'm v=1')\n"
        "assert answer.status == 0 and answer.reason == 'Connection refused', answer\n"
        "assert 'reactivex' not in sys.modules and 'requests' not in sys.modules\n"
        "assert len([name for name in sys.modules if name.startswith('influxdb_client')]) < 20\n"
        "from influxdb_client import InfluxDBClient\n"
        "import influxdb_client.domain\n"
        "assert influxdb_client.domain.Bucket\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_a_client_that_is_laid_out_differently_is_loaded_whole() -> None:
    code = (
        "import sys\n"
        "from collector.sending import influx_client\n"
        "def changed(name): raise AttributeError(name)\n"
        "influx_client._find = changed\n"
        "settings = influx_client.WriteClientSettings(\n"
        "    url='http://127.0.0.1:9', authorization='Token a', timeout_seconds=1)\n"
        "influx_client.InfluxWriteClient(settings).close()\n"
        "assert 'influxdb_client.domain.bucket' in sys.modules\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_the_lines_kept_aside_are_bounded(tmp_path: Path) -> None:
    kept = UndeliverableLines(tmp_path / "undeliverable.log", max_bytes=10_000)
    for number in range(1000):
        kept.add([b"m v=%d" % number], reason="no", refused_at=utc_now())
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert 5_000 < sum(sizes) <= 10_000
    assert (tmp_path / "undeliverable.log").read_bytes().endswith(b"m v=999\n")
