"""The exec plugin with real programs: good ones, slow ones, floods, rubbish, and early deaths."""

import logging
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from collector.config import check_plugin_tables
from plugins.base import PluginContext, PluginError, PluginUnavailableError
from plugins.exec.program import ProgramConfig
from plugins.exec.reader import ExecConfig, ExecPlugin
from tests.fixtures.polling import eventually
from timeseries.points import Point

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = 10**9


class Reading:
    """A plugin with programs, and a clock that only the test moves."""

    def __init__(self, plugin: ExecPlugin) -> None:
        self.plugin = plugin
        self.now = NOON

    def gather(self, *, after_seconds: float = 0.0) -> list[Point]:
        self.now += timedelta(seconds=after_seconds)
        return list(self.plugin.gather(self.now))

    def until(self, count: int = 1, *, step_seconds: float = 0.0) -> list[Point]:
        """Gather until there are so many points."""
        points: list[Point] = []

        def enough() -> bool:
            points.extend(self.gather(after_seconds=step_seconds))
            return len(points) >= count

        eventually(enough, what=f"{count} points")
        return points


@contextmanager
def reading(
    *programs: ProgramConfig, max_line_bytes: int = 4096, max_output_bytes: int = 262144
) -> Iterator[Reading]:
    config = ExecConfig(
        programs=programs, max_line_bytes=max_line_bytes, max_output_bytes=max_output_bytes
    )
    plugin = ExecPlugin(config, PluginContext())
    try:
        yield Reading(plugin)
    finally:
        plugin.close()


def shell(script: str, *, name: str = "prog", **settings: object) -> ProgramConfig:
    return ProgramConfig(command=("/bin/sh", "-c", script), name=name, **settings)  # type: ignore[arg-type]


def python(script: str, **settings: object) -> ProgramConfig:
    return ProgramConfig(command=(sys.executable, "-c", script), name="prog", **settings)  # type: ignore[arg-type]


def is_gone(pid: int) -> bool:
    """Return whether a process runs no more; one may wait to be reaped still."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        return True
    return status.rpartition(")")[2].split()[0] == "Z"


def test_what_a_program_prints_becomes_points() -> None:
    with reading(shell("echo PUTVAL h/spam-1/gauge-a 1700000000:5; echo PUTVAL h/x/gauge U")) as it:
        assert it.gather() == []  # it was only started now
        [point] = it.until()
        assert point.measurement == "collectd_spam"
        assert point.tags["type_instance"] == "a"
        assert (point.fields, point.time_ns) == ({"value": 5.0}, 1700000000 * SECOND)


def test_a_reading_does_not_wait_for_a_silent_program() -> None:
    with reading(shell("exec sleep 600")) as it:
        began = time.perf_counter()
        for _ in range(5):
            assert it.gather(after_seconds=10) == []
        assert time.perf_counter() - began < 30.0  # not six hundred


def test_a_long_running_program_is_read_while_it_runs() -> None:
    script = "while read -r x; do :; done < /dev/null; echo PUTVAL h/a/gauge N:1; exec sleep 600"
    with reading(shell(script)) as it:
        it.gather()
        [point] = it.until(step_seconds=1)
        assert point.time_ns == int(it.now.timestamp()) * SECOND


def has_ended(pid_file: Path) -> bool:
    """Return whether the process that writes its id to a file has written it and ended."""
    if not pid_file.exists() or not (pid := pid_file.read_text().strip()):
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state.rpartition(")")[2].split()[0] == "Z"


def test_now_in_a_run_that_is_over_is_when_the_run_began(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    with reading(shell(f"echo PUTVAL h/a/gauge N:1; echo $$ > {pid}")) as it:
        it.gather()
        eventually(lambda: has_ended(pid))
        points = it.until(step_seconds=1)
        assert points[0].time_ns == int(NOON.timestamp()) * SECOND


def test_many_nows_of_one_series_are_spread_over_the_time_since_the_last_reading(
    tmp_path: Path,
) -> None:
    done = tmp_path / "done"
    script = f"for i in 0 10 30 60; do echo PUTVAL h/a/derive N:$i; done; : > {done}; exec sleep 99"
    with reading(shell(script)) as it:
        it.gather()
        eventually(done.exists)
        points = it.gather(after_seconds=40)
        assert [(point.time_ns - int(NOON.timestamp()) * SECOND) // SECOND for point in points] == [
            20,
            30,
            40,
        ]
        assert [point.fields["value_per_second"] for point in points] == [1.0, 2.0, 3.0]


def test_a_program_learns_interval_and_host_and_gets_its_own_variables() -> None:
    script = 'echo PUTVAL "$COLLECTD_HOSTNAME/a/gauge-$COLLECTD_INTERVAL" N:$ANSWER'
    with reading(shell(script, interval_seconds=5, environment={"ANSWER": "42"})) as it:
        it.gather()
        [point] = it.until()
        assert point.tags == {"type": "gauge", "type_instance": "5.000"}
        assert point.fields == {"value": 42.0}


def test_arguments_reach_the_program_without_a_shell() -> None:
    argument = "$HOME; `id` 'x'"
    script = "import sys; print('PUTVAL h/a/gauge N:' + str(len(sys.argv[1])))"
    config = ProgramConfig(command=(sys.executable, "-c", script, argument))
    with reading(config) as it:
        it.gather()
        assert it.until()[0].fields == {"value": float(len(argument))}


def test_a_program_that_ended_is_started_again_after_its_interval(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with reading(shell(f"echo run >> {runs}; echo PUTVAL h/a/gauge N:1")) as it:
        it.gather()
        it.until()
        it.gather(after_seconds=9)
        assert runs.read_text(encoding="ascii") == "run\n"
        it.gather(after_seconds=1)
        eventually(lambda: runs.read_text(encoding="ascii") == "run\nrun\n")


def test_a_program_that_fails_is_started_ever_less_often(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runs = tmp_path / "runs"

    def count() -> int:
        return len(runs.read_text(encoding="ascii")) if runs.exists() else 0

    def has_failed(times: int) -> bool:
        return bool(it.gather()) or caplog.text.count("prog exited with status 3") == times

    with reading(shell(f"printf x >> {runs}; exit 3")) as it:
        it.gather()
        for number, wait_seconds in enumerate((20, 40, 80), start=1):
            eventually(partial(has_failed, number))
            assert f"next start in {wait_seconds} s" in caplog.records[-1].message
            it.gather(after_seconds=wait_seconds - 1)
            assert count() == number
            it.gather(after_seconds=1)


def test_a_program_that_is_not_there_is_named_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with reading(ProgramConfig(command=("/nowhere/probe",))) as it:
        assert it.gather() == []
        assert "probe can't be started: No such file or directory; next start in 20 s" in (
            caplog.text
        )


def test_a_run_over_its_time_limit_is_ended(caplog: pytest.LogCaptureFixture) -> None:
    with reading(shell("exec sleep 600", time_limit_seconds=30)) as it:
        it.gather()
        it.gather(after_seconds=30)
        assert "prog ran for over 30 s: terminating it" in caplog.text
        eventually(lambda: it.gather() or "prog was killed by signal 15" in caplog.text)


def test_a_run_that_ignores_its_end_is_killed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ready = tmp_path / "ready"
    script = f"trap '' TERM; : > {ready}; while :; do sleep 1; done"
    with reading(shell(script, time_limit_seconds=30)) as it:
        it.gather()
        eventually(ready.exists)
        it.gather(after_seconds=30)
        eventually(
            lambda: it.gather(after_seconds=1) or "prog was killed by signal 9" in caplog.text
        )


def test_invalid_lines_are_counted_and_valid_ones_are_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    script = (
        "echo hello; echo PUTVAL h/a/gauge N:x; echo PUTVAL h/a/gauge N:1; echo PUTVAL h/a/no N:1"
    )
    with reading(shell(script)) as it:
        it.gather()
        [point] = it.until()
        assert point.fields == {"value": 1.0}
    assert "exec: prog: 3 bad readings; first line 1, column 1: 'hello' is not a command" in (
        caplog.text
    )


def test_complaints_do_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    script = "while :; do echo rubbish; echo PUTVAL h/a/gauge N:1; done"
    with reading(shell(script)) as it:
        it.gather()
        it.until(50, step_seconds=1)
        it.until(50, step_seconds=1)
    assert len([record for record in caplog.records if "bad readings" in record.message]) == 1


def test_binary_output_is_an_invalid_line_and_the_next_line_is_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    script = (
        "import os; os.write(1, bytes(range(256)) * 8 + b'\\n\\xff\\xfe\\n\\0\\0\\n'"
        " + b'PUTVAL h/a/gauge N:1\\n')"
    )
    with reading(python(script)) as it:
        it.gather()
        [point] = it.until()
        assert point.fields == {"value": 1.0}
    assert "bad readings; first line 1" in caplog.text


def test_a_flood_is_cut_and_counted_and_costs_little(caplog: pytest.LogCaptureFixture) -> None:
    script = "import os\nwhile True: os.write(1, b'PUTVAL h/a/gauge 5:1\\n' * 4096)"
    with reading(python(script), max_output_bytes=16384) as it:
        it.gather()
        it.until(100, step_seconds=1)
        for _ in range(5):
            began = time.perf_counter()
            points = it.gather(after_seconds=1)
            assert time.perf_counter() - began < 30.0
            assert len(points) <= 16384 // 20
        eventually(lambda: it.gather() and "bytes, above the limit" in caplog.text)


def test_a_line_without_end_is_dropped_to_its_end(caplog: pytest.LogCaptureFixture) -> None:
    script = "import os; os.write(1, b'y' * 50000 + b'\\nPUTVAL h/a/gauge N:1\\n')"
    with reading(python(script), max_line_bytes=1000) as it:
        it.gather()
        [point] = it.until()
        assert point.fields == {"value": 1.0}
    assert "dropped 50000 bytes" in caplog.text


def test_a_last_line_without_newline_counts() -> None:
    with reading(shell("printf 'PUTVAL h/a/gauge N:1'")) as it:
        it.gather()
        assert it.until()[0].fields == {"value": 1.0}


def test_standard_error_is_logged_with_the_name_of_the_program(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with reading(shell("echo no access >&2")) as it:
        eventually(lambda: it.gather() or "exec: prog: no access" in caplog.text)


def test_a_notification_is_logged_by_its_severity_and_is_a_point(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with reading(
        shell("echo PUTNOTIF severity=failure time=7 plugin=ups message=on battery")
    ) as it:
        it.gather()
        [point] = it.until()
        assert point.measurement == "notification"
        assert point.tags == {"severity": "failure", "plugin": "ups"}
    [record] = [candidate for candidate in caplog.records if "notifies" in candidate.message]
    assert record.levelno == logging.ERROR
    assert record.message == "exec: prog notifies (ups): on battery"


def test_one_program_that_dies_leaves_the_others_alone() -> None:
    with reading(shell("kill -9 $$", name="dies"), shell("echo PUTVAL h/a/gauge N:1")) as it:
        it.gather()
        assert it.until()[0].fields == {"value": 1.0}


def test_closing_ends_the_program_and_what_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"trap '' TERM; sleep 600 & echo $$ $! > {pids}; wait; while :; do sleep 1; done"
    with reading(shell(script)) as it:
        it.gather()
        eventually(lambda: pids.exists() and pids.read_text(encoding="ascii"))
    for pid in pids.read_text(encoding="ascii").split():
        eventually(partial(is_gone, int(pid)))


def test_closing_lets_a_program_end_by_itself(tmp_path: Path) -> None:
    ready, said = tmp_path / "ready", tmp_path / "said"
    script = f"trap 'echo bye > {said}; exit 0' TERM; : > {ready}; while :; do sleep 0.05; done"
    with reading(shell(script)) as it:
        it.gather()
        eventually(ready.exists)
    assert said.read_text(encoding="ascii") == "bye\n"


def test_a_program_ends_at_its_next_word_when_its_reader_was_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = (
        f"echo $$ > {pid_file}; while :; do echo PUTVAL h/a/gauge N:1 || exit; sleep 0.05; done"
    )
    code = f"""
import os, signal
from datetime import UTC, datetime
from plugins.base import PluginContext
from plugins.exec.reader import ExecPlugin
from plugins.exec.program import ProgramConfig
from plugins.exec.reader import ExecConfig
program = ProgramConfig(command=("/bin/sh", "-c", {script!r}))
ExecPlugin(ExecConfig(programs=(program,)), PluginContext()).gather(datetime.now(UTC))
while not os.path.exists({str(pid_file)!r}) or not open({str(pid_file)!r}).read():
    pass
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", code], check=False, timeout=30)
    assert killed.returncode == -signal.SIGKILL
    eventually(partial(is_gone, int(pid_file.read_text(encoding="ascii"))))


def test_without_programs_there_is_nothing_to_read() -> None:
    with reading() as it, pytest.raises(PluginUnavailableError, match="no programs"):
        it.gather()


def test_a_file_of_types_that_is_not_there_is_a_plugin_error(tmp_path: Path) -> None:
    config = ExecConfig(programs=(shell("exit"),), types_db=(tmp_path / "no.db",))
    with pytest.raises(PluginError, match="types_db"):
        ExecPlugin(config, PluginContext()).gather(NOON)


def test_settings_are_checked_and_a_misspelt_one_is_named() -> None:
    good = {"programs": [{"command": ["/bin/true"], "interval_seconds": 5}]}
    settings, faults = check_plugin_tables({"exec": good})
    assert faults == []
    assert isinstance(settings[0].config, ExecConfig)
    assert settings[0].config.programs[0].interval_seconds == 5.0
    for bad, word in (
        ({"programs": [{"comand": ["x"]}]}, "comand"),
        ({"programs": [{"command": []}]}, "length >= 1"),
        ({"programs": [{"command": ["x"], "interval_seconds": 0}]}, "> 0"),
        ({"programms": []}, "did you mean plugins.exec.programs?"),
    ):
        assert word in "".join(check_plugin_tables({"exec": bad})[1])


def test_what_a_program_wrote_before_it_was_stopped_is_kept() -> None:
    script = (
        "trap 'echo PUTVAL h/ups/gauge-load N:7; exit 0' TERM; "
        "echo PUTVAL h/ups/gauge-load N:6; while :; do sleep 0.05; done"
    )
    with reading(shell(script)) as it:
        it.until(1)
        stopped = list(it.plugin.last_points(it.now))
    assert [value for point in stopped for value in point.fields.values()] == [7.0]
