"""Write targets: added tags, proxies, memory, and the log of rejected lines."""

import subprocess
import sys
from pathlib import Path

import pytest

from collector.buffering.undeliverable import UndeliverableLines
from collector.sending.http import proxy_for, proxy_headers
from collector.sending.write_targets import line_tagger
from core.clock import utc_now
from timeseries.lineprotocol.encode import encode
from timeseries.lineprotocol.parser import parse
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
def test_tags_are_added_to_every_line_and_nothing_else_changes(point: Point) -> None:
    lines = encode([point, point]).rstrip(b"\n")
    stamped = parse(line_tagger(TAGS)(lines), default_time_ns=0)
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
def test_the_proxy_is_read_from_the_environment(
    url: str, environ: dict[str, str], proxy: str | None
) -> None:
    assert proxy_for(url, environ) == proxy


def test_a_proxys_credentials_are_sent_to_it() -> None:
    assert proxy_headers("http://user:pass@proxy:3128") == {
        "proxy-authorization": "Basic dXNlcjpwYXNz"
    }


def test_an_agent_with_a_portal_does_not_load_the_influxdb_client() -> None:
    script = (
        "import sys\n"
        "import collector.agent\n"
        "from collector.sending.write_targets import portal_target\n"
        "response = portal_target('t', timeout_seconds=1).write('http://127.0.0.1:9', b'm v=1')\n"
        "assert response.status == 0 and response.reason == 'Connection refused', response\n"
        "assert not {'influxdb_client', 'requests', 'docker'} & sys.modules.keys()\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_the_log_of_rejected_lines_has_a_size_limit(tmp_path: Path) -> None:
    undeliverable = UndeliverableLines(tmp_path / "undeliverable.log", max_bytes=10_000)
    for number in range(1000):
        undeliverable.add([b"m v=%d" % number], reason="no", rejected_at=utc_now())
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert 5_000 < sum(sizes) <= 10_000
    assert (tmp_path / "undeliverable.log").read_bytes().endswith(b"m v=999\n")
