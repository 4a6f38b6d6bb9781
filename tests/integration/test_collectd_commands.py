"""The plain-text protocol beside collectd itself: the same lines taken, the same readings."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from plugins.collectd.commands import CommandError, parse_command
from plugins.collectd.mapping import PointMapper
from plugins.collectd.types_db import load_types
from plugins.collectd.values import Notification
from tests.fixtures.collectd import our_readings, running_collectd, stored_readings
from tests.fixtures.polling import eventually
from timeseries.points import Point

HOST = socket.gethostname()
SOCKET_CONF = """
LoadPlugin unixsock
<Plugin unixsock>
  SocketFile "{folder}/socket"
</Plugin>
"""

GOOD = rf"""
PUTVAL {HOST}/plain/gauge 1700000100:1.5
PUTVAL {HOST}/plain/gauge-b interval=10 1700000100:-2e3 1700000110:0x10
putval {HOST}/lower/gauge 1700000100:1
PUTVAL "{HOST}/quoted/gauge-a b" 1700000100:1
PUTVAL "{HOST}/quoted/gauge-a \"b\"" interval="5" 1700000100:1
PUTVAL {HOST}/quoted/gauge-"c d" 1700000100:1
PUTVAL {HOST}/unknown/gauge 1700000100:U 1700000110:3
PUTVAL {HOST}/nan/gauge 1700000100:nan
PUTVAL {HOST}/pair-x/if_octets-y interval=10 1700000100:0:0 1700000110:10:20
PUTVAL {HOST}/hex/counter 1700000100:0x10 1700000110:26
PUTVAL {HOST}/cut/derive 1700000100:7.9 1700000110:27.2
PUTVAL {HOST}/falls/derive 1700000100:-5 1700000110:-25 1700000120:5
PUTVAL {HOST}/since/absolute interval=5 1700000100:50 1700000110:50
PUTVAL {HOST}/wrap/counter 1700000100:4294967196 1700000110:400
PUTVAL {HOST}/slashes/gauge-/a/b/ 1700000100:1
PUTVAL {HOST}/slashes-/gauge 1700000100:1
PUTVAL {HOST}/meta/gauge "meta:a=\"b\"" 1700000100:1
PUTVAL {HOST}/odd/gauge interval=nonsense 1700000100:1
PUTVAL {HOST}/fraction/gauge 1700000100.000:1
PUTVAL {HOST}/tabs/gauge	1700000100:1
PUTNOTIF severity=okay time=5 message="all well"
PUTNOTIF severity=FAILURE time=5 plugin=p type=gauge message="on fire"
""".strip().splitlines()

BAD = rf"""
HELLO
PUTVAL
PUTVAL {HOST}/plain/gauge
PUTVAL plain/gauge 1700000200:1
PUTVAL {HOST}/plain/nope 1700000200:1
PUTVAL {HOST}/plain/gauge 1700000200
PUTVAL {HOST}/plain/gauge 1700000200:1:2
PUTVAL {HOST}/plain/gauge soon:1
PUTVAL {HOST}/plain/gauge 1700000200:high
PUTVAL {HOST}/plain/counter 1700000200:high
PUTVAL "{HOST}/plain/gauge 1700000200:1
PUTNOTIF severity=okay time=5
PUTNOTIF severity=bad time=5 message=x
PUTNOTIF time=5 message=x
PUTNOTIF severity=okay message=x
PUTNOTIF severity=okay time=N message=x
""".strip().splitlines()


class Line:
    """A conversation with collectd's socket."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(10)
        self._socket.connect(str(path))
        self._answers = self._socket.makefile("r", encoding="utf-8")

    def takes(self, command: str) -> bool:
        """Return whether collectd takes a command."""
        self._socket.sendall(f"{command}\n".encode())
        return int(self._answers.readline().split()[0]) >= 0

    def close(self) -> None:
        self._answers.close()
        self._socket.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("collectd")


@pytest.fixture(scope="module")
def line(folder: Path) -> Iterator[Line]:
    """A line to a running collectd."""
    with running_collectd(folder, SOCKET_CONF):
        eventually((folder / "socket").exists, what="collectd's socket")
        line = Line(folder / "socket")
        yield line
        line.close()


def we_take(command: str) -> bool:
    try:
        parse_command(command, load_types([]))
    except CommandError:
        return False
    return True


def test_good_lines_are_taken_by_both_and_give_the_same_readings(line: Line, folder: Path) -> None:
    types = load_types([])
    mapper = PointMapper(types, host=HOST)
    points: list[Point | None] = []
    for command in GOOD:
        assert line.takes(command), command
        said = parse_command(command, types)
        assert said is not None
        if not isinstance(said, Notification):
            points += [
                mapper.point(value_list, now_ns=0, interval_seconds=10) for value_list in said
            ]
    ours = our_readings([point for point in points if point is not None])
    assert len(ours) > 20
    theirs = eventually(
        lambda: stored if set(stored := stored_readings(folder)) >= set(ours) else None,
        what="the last reading to be stored",
    )
    assert set(theirs) == set(ours)
    for key, value in ours.items():
        assert value == pytest.approx(theirs[key]), key


@pytest.mark.parametrize("command", BAD)
def test_bad_lines_are_refused_by_both(line: Line, command: str) -> None:
    assert not line.takes(command)
    assert not we_take(command)
