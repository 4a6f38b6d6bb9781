"""`vedette usage` against a real portal, and `vedette db recompute-usage`."""

from datetime import timedelta
from pathlib import Path

from core.db import SessionFactory
from jobqueue.usage.ledger import SETTLE, record_usage
from tests.cast import NOON, Cast, FrozenClock
from tests.fixtures.in_process import run_vedette
from tests.unit.cli.conftest import EnvironOf
from tests.unit.jobqueue.builders import start
from timeseries.store import Store


def test_usage_is_printed_by_group(
    *, environ_of: EnvironOf, cast: Cast, sessions: SessionFactory, store: Store, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        start(session, cast, gpus=2)
    clock.now = NOON + timedelta(hours=1) + SETTLE
    record_usage(sessions, store, now=clock.now)
    environ = environ_of(cast.bob)
    printed = run_vedette("usage", "--by", "job", environ=environ).stdout.splitlines()
    # Two GPUs for an hour and three minutes.
    assert [line.split() for line in printed] == [
        ["JOB", "ALLOCATED", "H", "USED", "H", "IDLE", "H", "USED", "KWH"],
        ["train", "2.1", "0.0", "0.0", "-", "0.00"],
    ]


def test_an_empty_ledger_is_recomputed_to_nothing(tmp_path: Path) -> None:
    environ = {"VEDETTE_DATA_DIR": str(tmp_path / "data")}
    assert run_vedette("db", "upgrade", environ=environ).returncode == 0
    done = run_vedette("db", "recompute-usage", "--since", "2026-01-01", environ=environ)
    assert (done.returncode, done.stdout) == (0, "0 hours measured, 0 corrections appended.\n")
