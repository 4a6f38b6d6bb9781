"""A server that is killed loses nothing: its agents deliver what they read meanwhile."""

import itertools
import os
import signal
import time
from pathlib import Path

import pytest

from core.clock import NS_PER_SECOND
from tests.deployment import Deployment, agent_of, make_deployment, serving
from tests.fixtures.polling import eventually
from timeseries.open_store import open_store
from timeseries.store import Aggregate, RangeQuery

INTERVAL_SECONDS = 0.5
OUTAGE_SECONDS = 6.0
# A reading may be late on a busy machine, but what is lost is as long as the outage.
LONGEST_GAP_SECONDS = OUTAGE_SECONDS - 1.0
AGENT = f"""
interval_seconds = {INTERVAL_SECONDS}
flush_interval_seconds = {INTERVAL_SECONDS}
heartbeat_interval_seconds = 1
executor = "none"
"""


@pytest.mark.timeout(180)
def test_samples_of_an_outage_arrive_after_kill_nine(tmp_path: Path) -> None:
    deployment = make_deployment(tmp_path)
    home = tmp_path / "agent"
    token = deployment.enrollment_secret("acme")
    with serving(deployment) as server:
        enrolled = deployment.vedette(
            "agent", "enroll", deployment.url, token, "--name", "host-1", "--data-dir", str(home)
        )
        assert enrolled.returncode == 0, enrolled.stderr
        with agent_of(deployment, home=home, toml=AGENT):
            eventually(lambda: _delivered(home), within_seconds=60, what="the first delivery")
            killed_at_ns = time.time_ns()
            os.kill(server.pid, signal.SIGKILL)
            server.wait()
            time.sleep(OUTAGE_SECONDS)
            back_at_ns = time.time_ns()
            with serving(deployment):
                eventually(
                    lambda: _is_empty_since(home, back_at_ns),
                    within_seconds=60,
                    what="the backlog to go",
                )
    times_ns = _sample_times(deployment, killed_at_ns - 3 * NS_PER_SECOND, back_at_ns)

    assert times_ns[-1] > back_at_ns - LONGEST_GAP_SECONDS * NS_PER_SECOND
    gaps = [(after - before) / NS_PER_SECOND for before, after in itertools.pairwise(times_ns)]
    assert max(gaps) < LONGEST_GAP_SECONDS


def _delivered(home: Path) -> bool:
    return any((home / "buffer").glob("*cursor*"))


def _is_empty_since(home: Path, instant_ns: int) -> bool:
    """Return whether the buffer's cursor moved after `instant_ns`: old segments are sent."""
    cursors = list((home / "buffer").glob("*cursor*"))
    return any(cursor.stat().st_mtime_ns > instant_ns + 5 * NS_PER_SECOND for cursor in cursors)


def _sample_times(deployment: Deployment, start_ns: int, end_ns: int) -> list[int]:
    store = open_store(deployment.settings.resolved_timeseries_url)
    try:
        series = store.query_range(
            RangeQuery(
                measurement="load",
                fields=("load1",),
                start_ns=start_ns,
                end_ns=end_ns,
                aggregate=Aggregate.COUNT,
                step_ns=NS_PER_SECOND // 4,
                tenants=None,
            )
        )
    finally:
        store.close()
    return series[0].times_ns
