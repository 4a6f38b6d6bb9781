"""Datasets on their way to an appliance, beside rclone from the same bucket in the same run.

    bucket      from a server of S3 (moto): the same objects by rclone, and as a dataset
    again       a second job with the same dataset
    packed      many small files of an upload, beside one large file of as many bytes, and beside
                a bare loop that creates the same files

Folders are in memory (/dev/shm) where there is such a file system: a disk that others use takes
milliseconds for each new file, and says nothing about the agent.
"""

import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import obstore
from obstore.store import S3Store

from benchmarks.shared.document import Figures, Outcome, Promise, compared, median, ratio, rounded
from collector.data_dir import Identity
from collector.datasets.cache import Cache
from collector.datasets.settings import DatasetSettings
from collector.datasets.stager import Stager
from collector.sending.access_points import AccessPoints
from collector.sending.portal_connection import PortalConnection
from core.clock import to_ns, utc_now
from protocol.attempts import AttemptSpec, DesiredState
from protocol.datasets import DatasetOrders, DatasetSource, SourceKind, StagedDataset
from tests.fixtures.data_portal import DataPortal, data_portal
from tests.fixtures.s3 import new_bucket, s3_server
from tests.servers import require_program

MEBIBYTE = 2**20
MOST_TO_RCLONE, MOST_PACKED, MOST_BYTES_AGAIN = 1.0, 3.0, 0.0
MEMORY = Path("/dev/shm")  # noqa: S108 - a file system, not a file
POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is fetched."""

    repetitions: int = 5
    objects: int = 24
    object_mib: int = 16
    small_objects: int = 2_000
    small_files: int = 100_000
    small_bytes: int = 16_384


FULL = Plan()
QUICK = Plan(repetitions=1, objects=4, small_objects=100, small_files=20_000)


def measure(plan: Plan, folder: Path) -> Outcome:
    """Fetch from a bucket, and from the portal."""
    rclone = require_program("rclone", package="rclone")
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else folder) as name:
        bucket = _from_bucket(plan, Path(name) / "bucket", rclone)
        packed = _packed(plan, Path(name) / "packed")
    to_rclone = bucket["ratios_to_rclone"]["dataset"]["seconds"]
    promises = [
        Promise("a dataset of a bucket beside rclone", to_rclone, MOST_TO_RCLONE, "times"),
        Promise("bytes that a second job moves", bucket["again_bytes"], MOST_BYTES_AGAIN, "bytes"),
        Promise("small files beside their bytes", packed["ratio"], MOST_PACKED, "times"),
    ]
    return Outcome({"bucket": bucket, "packed": packed}, promises)


def _from_bucket(plan: Plan, folder: Path, rclone: str) -> dict[str, Any]:
    folder.mkdir(parents=True)
    with s3_server(folder) as endpoint, data_portal() as portal:
        source, files = _fill(plan, endpoint)
        dataset = portal.add("images", files, source=source)
        repetitions: list[dict[str, Figures]] = []
        again_bytes = 0.0
        for number in range(plan.repetitions):
            own, theirs = folder / f"own-{number}", folder / f"rclone-{number}"
            with _stager(own, portal) as stager:
                seconds = _seconds_to_stage(stager, dataset)
                before_bytes = stager.metrics().get("dataset_fetched_bytes") or 0
                _seconds_to_stage(stager, dataset, attempt_id="b")
                after_bytes = stager.metrics().get("dataset_fetched_bytes") or 0
                again_bytes += after_bytes - before_bytes
            repetitions.append(
                {
                    "dataset": {"seconds": rounded(seconds)},
                    "rclone": {"seconds": rounded(_rclone_seconds(rclone, source, theirs))},
                }
            )
            shutil.rmtree(own)
            shutil.rmtree(theirs)
    size_bytes = sum(map(len, files.values()))
    figures = compared(repetitions, "rclone")
    return {**figures, "mib": rounded(size_bytes / MEBIBYTE), "again_bytes": again_bytes}


def _fill(plan: Plan, endpoint: str) -> tuple[DatasetSource, dict[str, bytes]]:
    chosen = random.Random(1)  # noqa: S311 - repeatable
    files = {
        f"large/{number:03}.bin": chosen.randbytes(plan.object_mib * MEBIBYTE)
        for number in range(plan.objects)
    }
    files |= {
        f"small/{number:05}.jpg": chosen.randbytes(chosen.randrange(20_000, 200_000))
        for number in range(plan.small_objects)
    }
    bucket = new_bucket(endpoint)
    store = S3Store(
        bucket.name,
        endpoint=endpoint,
        region="us-east-1",
        access_key_id="key",
        secret_access_key="secret",  # noqa: S106 - of the test server
        client_options={"allow_http": True},
    )
    for path, content in files.items():
        obstore.put(store, f"sets/{path}", content)
    source = DatasetSource(
        kind=SourceKind.S3,
        url=f"s3://{bucket.name}/sets",
        endpoint_url=endpoint,
        access_key_id="key",
        secret_access_key="secret",  # noqa: S106 - of the test server
    )
    return source, files


def _rclone_seconds(rclone: str, source: DatasetSource, folder: Path) -> float:
    """Copy the same objects by rclone, with as many transfers at once as a dataset."""
    environ = {
        # A bundle of authorities for AWS keeps this rclone from starting.
        **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
        "RCLONE_CONFIG": "",
        "RCLONE_CONFIG_BENCH_TYPE": "s3",
        "RCLONE_CONFIG_BENCH_PROVIDER": "Other",
        "RCLONE_CONFIG_BENCH_ENDPOINT": source.endpoint_url,
        "RCLONE_CONFIG_BENCH_ACCESS_KEY_ID": source.access_key_id,
        "RCLONE_CONFIG_BENCH_SECRET_ACCESS_KEY": source.secret_access_key,
    }
    argv = [
        rclone,
        "copy",
        "--transfers",
        "16",
        f"bench:{source.url.removeprefix('s3://')}",
        str(folder),
    ]
    began = time.perf_counter()
    subprocess.run(argv, env=environ, check=True)
    return time.perf_counter() - began


def _packed(plan: Plan, folder: Path) -> dict[str, float | None]:
    """Fetch many small files, and one large file with as many bytes, from the portal."""
    chosen = random.Random(2)  # noqa: S311 - repeatable
    noise = chosen.randbytes(plan.small_bytes + plan.small_files)
    small = {
        f"{number // 1000:04}/{number % 1000:03}": noise[number : number + plan.small_bytes]
        for number in range(plan.small_files)
    }
    took: dict[str, list[float]] = {"small": [], "large": [], "bare": []}
    with data_portal() as portal:
        versions = {
            "small": portal.add("small", small),
            "large": portal.add("large", {"data": os.urandom(plan.small_files * plan.small_bytes)}),
        }
        for number in range(max(1, plan.repetitions // 2)):
            for name, dataset in versions.items():
                place = folder / f"{name}-{number}"
                with _stager(place, portal) as stager:
                    took[name].append(_seconds_to_stage(stager, dataset))
                shutil.rmtree(place)
            took["bare"].append(_bare_seconds(small, folder / "bare"))
    small_seconds, large_seconds = median(took["small"]), median(took["large"])
    return {
        "small_files": plan.small_files,
        "mib": rounded(plan.small_files * plan.small_bytes / MEBIBYTE),
        "small_seconds": small_seconds,
        "large_seconds": large_seconds,
        "bare_seconds": median(took["bare"]),
        "ratio": ratio(small_seconds, large_seconds),
    }


def _bare_seconds(files: dict[str, bytes], folder: Path) -> float:
    """Create the files with nothing else."""
    for name in {path.partition("/")[0] for path in files}:
        (folder / name).mkdir(parents=True)
    began = time.perf_counter()
    for path, content in files.items():
        (folder / path).write_bytes(content)
    seconds = time.perf_counter() - began
    shutil.rmtree(folder)
    return seconds


@contextmanager
def _stager(folder: Path, portal: DataPortal) -> Iterator[Stager]:
    settings = DatasetSettings(cache_max_bytes=2**40, min_free_bytes=0)
    cache = Cache(folder, max_bytes=2**40, min_free_bytes=0, now_ns=lambda: to_ns(utc_now()))
    stager = Stager(
        settings,
        cache,
        connect=lambda: PortalConnection(AccessPoints([portal.url]), agent_token="t"),  # noqa: S106
        identity=Identity(appliance_id="dgx-1", tenant_id="acme", agent_token="t"),  # noqa: S106
    )
    stager.start()
    try:
        yield stager
    finally:
        stager.close()


def _seconds_to_stage(stager: Stager, dataset: StagedDataset, *, attempt_id: str = "a") -> float:
    spec = AttemptSpec(attempt_id=attempt_id, job_id="j", name="n", image="i", datasets=[dataset])
    began = time.perf_counter()
    stager.set_desired(DesiredState(generation=1, attempts=[spec], datasets=DatasetOrders()))
    wanted: Sequence[StagedDataset] = [dataset]
    while stager.trees(attempt_id, wanted) is None:
        time.sleep(POLL_SECONDS)
    return time.perf_counter() - began
