"""Backup, verification and restore of a server with a gigabyte of data, by its commands.

    first       the first backup, which stores everything
    second      the next one, after an hour of samples and one more log
    verify      a test that the last one can be restored
    restore     on a host without data

The data are samples in files of many tenants, and logs of jobs, which compress as text does. The
repository is a folder on the same disk.
"""

import os
import subprocess
import sys
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import select

from benchmarks.shared.document import BenchmarkError, Outcome, Promise, rounded, seconds_of
from benchmarks.shared.filling import Samples, repeat_first_day, seal, submit
from benchmarks.shared.fleet import MINUTE_NS, gpu_batch, name_of
from benchmarks.shared.servers import opened
from cli.database import open_database
from core.clock import to_ns, utc_now
from core.db import transaction
from core.settings import ServerSettings
from tenants.models import BackupRun
from timeseries.store import DAY_NS, HOUR_NS

STEP_NS = MINUTE_NS
MAX_RESTORE_SECONDS = 120.0
MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is backed up."""

    appliances: int = 100
    tenants: int = 20
    days: int = 30
    logs: int = 1_000
    log_mib: int = 1


FULL = Plan()
QUICK = Plan(appliances=4, tenants=2, days=2, logs=4)


def measure(plan: Plan, folder: Path) -> Outcome:
    """Fill a server, back it up twice, verify, and restore it elsewhere."""
    lost, new = folder / "lost", folder / "new"
    password = folder / "password"
    password.write_text("a password\n", encoding="utf-8")
    environ = {
        "VEDETTE_CONFIG": "",
        "VEDETTE_BACKUP_URL": str(folder / "repository"),
        "VEDETTE_BACKUP_PASSWORD_FILE": str(password),
    }
    start_ns = to_ns(utc_now()) // DAY_NS * DAY_NS - plan.days * DAY_NS
    _fill(plan, lost, start_ns)
    bytes_before = sum(path.stat().st_size for path in lost.rglob("*") if path.is_file())
    results = {
        "data": {"mib": rounded(bytes_before / MEBIBYTE)},
        "first": _backed_up(lost, environ),
    }
    _add(plan, lost, start_ns)
    results["second"] = _backed_up(lost, environ)
    for name, argv, data_dir in (
        ("verify", ("backup", "verify"), lost),
        ("restore", ("restore",), new),
    ):
        seconds = seconds_of(lambda: _run(argv, data_dir, environ))  # noqa: B023 - called at once
        results[name] = {"seconds": rounded(seconds)}
    restore_seconds = results["restore"]["seconds"]
    promise = Promise("restore of the data", restore_seconds, MAX_RESTORE_SECONDS, "seconds")
    return Outcome(results, [promise])


def _fill(plan: Plan, data_dir: Path, start_ns: int) -> None:
    with open_database(ServerSettings(data_dir=data_dir), may_create=True):
        pass
    with opened(f"duckdb:///{data_dir}/samples.duckdb") as store:
        submit(store, _samples(plan, start_ns, hours=24))
        seal(store, now_ns=start_ns + 2 * DAY_NS)
        repeat_first_day(store, plan.days - 1, until_ns=start_ns + plan.days * DAY_NS)
    for number in range(plan.logs):
        _write_log(plan, data_dir, number)


def _add(plan: Plan, data_dir: Path, start_ns: int) -> None:
    """Add what a server gets in an hour."""
    with opened(f"duckdb:///{data_dir}/samples.duckdb") as store:
        submit(store, _samples(plan, start_ns + plan.days * DAY_NS, hours=1))
    _write_log(plan, data_dir, plan.logs)


def _samples(plan: Plan, start_ns: int, *, hours: int) -> Samples:
    for hour in range(hours):
        hour_ns = start_ns + hour * HOUR_NS
        times = range(hour_ns, hour_ns + HOUR_NS, STEP_NS)
        for appliance in range(plan.appliances):
            tenant = f"tenant-{appliance % plan.tenants}"
            identity = {"tenant": tenant, "appliance": name_of(appliance)}
            yield identity, gpu_batch(appliance, times, tick=hour * HOUR_NS // STEP_NS)


def _write_log(plan: Plan, data_dir: Path, number: int) -> None:
    path = data_dir / "job-logs" / f"tenant-{number % plan.tenants}" / f"job-{number}" / "1.log"
    path.parent.mkdir(parents=True)
    path.write_bytes(b64encode(os.urandom(plan.log_mib * MEBIBYTE * 3 // 4)))


def _backed_up(data_dir: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    seconds = seconds_of(lambda: _run(("backup",), data_dir, environ))
    with (
        open_database(ServerSettings(data_dir=data_dir)) as (_engine, sessions),
        transaction(sessions) as session,
    ):
        run = session.scalars(select(BackupRun).order_by(BackupRun.id.desc()).limit(1)).one()
    return {
        "seconds": rounded(seconds),
        "total_mib": rounded(run.total_bytes / MEBIBYTE),
        "added_mib": rounded(run.added_bytes / MEBIBYTE),
    }


def _run(arguments: Sequence[str], data_dir: Path, environ: Mapping[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", *arguments],
        env={**os.environ, **environ, "VEDETTE_DATA_DIR": str(data_dir)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BenchmarkError(f"vedette {' '.join(arguments)} failed: {done.stderr}")
