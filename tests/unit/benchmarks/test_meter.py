"""What a process uses, as the benchmarks measure it."""

import os
import subprocess
import sys
import time
from threading import Thread

import pytest

from benchmarks.meter import (
    NS_PER_SECOND,
    Usage,
    cpu_ns,
    descendants,
    memory_bytes,
    read_usage,
    spent,
    stat_columns,
    switches,
)

# proc_pid_stat(5), of a process whose name holds both a space and a bracket.
STAT = "32751 (tmux: se) r)) S 1 32751 32751 0 -1 4194304 5 66 0 0 12 34 56 78 20 0 1 0 905"
SMAPS_ROLLUP = """55d0c0a00000-7ffd1b9f9000 ---p 00000000 00:00 0                  [rollup]
Rss:               53480 kB
Pss:               42815 kB
Pss_Dirty:         39960 kB
"""
STATUS = """Name:\tpython
Threads:\t4
voluntary_ctxt_switches:\t1200
nonvoluntary_ctxt_switches:\t34
"""


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def usage(at_seconds: float, **changes: int) -> Usage:
    fields = {
        "cpu_ns": 0,
        "voluntary_switches": 0,
        "involuntary_switches": 0,
        "threads": 1,
        "processes": 1,
        "resident_bytes": 0,
        "proportional_bytes": 0,
    }
    return Usage(at_seconds=at_seconds, **(fields | changes))


def test_the_columns_of_a_stat_line_begin_behind_a_name_that_may_hold_anything() -> None:
    columns = stat_columns(STAT)
    assert columns[:2] == ["S", "1"]
    assert columns[11:15] == ["12", "34", "56", "78"]


def test_memory_is_read_from_the_rollup_of_the_maps() -> None:
    assert memory_bytes(SMAPS_ROLLUP) == (53480 * 1024, 42815 * 1024)


def test_context_switches_are_read_from_the_status_of_a_thread() -> None:
    assert switches(STATUS) == {"voluntary_ctxt_switches": 1200, "nonvoluntary_ctxt_switches": 34}


def test_figures_are_of_each_second_between_two_readings() -> None:
    before = usage(100.0, cpu_ns=NS_PER_SECOND, voluntary_switches=10)
    after = usage(
        110.0, cpu_ns=NS_PER_SECOND + 25_000_000, voluntary_switches=40, resident_bytes=50 * 2**20
    )
    figures = spent(before, after)
    assert figures["cpu_milliseconds_per_second"] == pytest.approx(2.5)
    assert figures["cpu_percent_of_a_core"] == pytest.approx(0.25)
    assert figures["voluntary_switches_per_second"] == pytest.approx(3.0)
    assert figures["resident_mebibytes"] == pytest.approx(50.0)


def test_the_cpu_time_of_a_thread_that_has_ended_is_counted() -> None:
    before = cpu_ns(os.getpid())
    thread = Thread(target=burn, args=(0.05,))
    thread.start()
    thread.join()
    assert cpu_ns(os.getpid()) - before >= 0.05 * NS_PER_SECOND


def test_a_child_that_lives_is_counted_with_its_parent() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert child.pid in descendants(os.getpid())
        assert read_usage(os.getpid()).processes >= 2
    finally:
        child.communicate(b"\n")
    assert child.pid not in descendants(os.getpid())


def test_a_process_that_has_ended_is_not_measured_as_nothing() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with pytest.raises(ProcessLookupError, match=str(child.pid)):
        read_usage(child.pid)
