"""The peers of the agent: what the sink counts, and collectd's configuration."""

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import collectd
from benchmarks.collectd import configuration, shell_pattern_as_regex
from benchmarks.sink import collectd_samples, line_samples

VALUE_LISTS: list[dict[str, Any]] = [
    {"values": [1, 2], "plugin": "load", "dsnames": ["shortterm", "midterm"]},
    {"values": [None], "plugin": "sensors", "dsnames": ["value"]},
]


def test_the_sink_counts_the_fields_of_lines() -> None:
    assert line_samples(b"cpu usage_percent=1,idle_percent=99 1\nload load1=0.5 1\n") == 3


def test_the_sink_counts_the_values_of_collectd_and_null_is_none() -> None:
    assert collectd_samples(VALUE_LISTS) == 2


@pytest.mark.parametrize(
    ("pattern", "fits", "fits_not"),
    [
        ("loop*", "loop7", "xloop7"),
        ("/dev/sd?", "/dev/sda", "/dev/sda1"),
        ("a.b", "a.b", "axb"),
        ("lo", "lo", "lo0"),
    ],
)
def test_a_shell_pattern_becomes_a_regular_expression_of_collectd(
    pattern: str, fits: str, fits_not: str
) -> None:
    regex = shell_pattern_as_regex(pattern).strip("/").replace("\\\\", "\\")
    assert re.search(regex, fits)
    assert not re.search(regex, fits_not)


def test_collectd_leaves_out_what_the_agent_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "write_http.so").touch()
    monkeypatch.setattr(collectd, "PLUGIN_DIRS", (str(tmp_path),))
    text = configuration(tmp_path, sink_url="http://127.0.0.1:9/collectd", interval_seconds=1.0)
    assert '  FSType "/^squashfs$/"' in text
    assert '  Disk "/^loop.*$/"' in text
    assert "Interval 1\n" in text


def test_without_write_http_the_packages_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collectd, "PLUGIN_DIRS", (str(tmp_path),))
    with pytest.raises(Exception, match="collectd-core, libyajl2"):
        configuration(tmp_path, sink_url="http://127.0.0.1:9/", interval_seconds=1.0)
