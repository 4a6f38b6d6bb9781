"""Attempts with datasets: they wait, get read-only mounts, and leave no credentials on the disk."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.jobs.attempts import AttemptRunner
from collector.jobs.executors import simulated_executor
from collector.jobs.preparations import PreparationError
from collector.jobs.staging import DatasetPreparation
from plugins.simulation.appliance import SimulatedAppliance
from plugins.simulation.config import SimulationConfig
from protocol.attempts import AttemptSpec, DesiredState
from protocol.datasets import DatasetOrders, DatasetSource, IndexOrder, SourceKind, StagedDataset
from protocol.job_spec import Mount
from tests.fixtures.data_portal import DataPortal, data_portal
from tests.fixtures.polling import eventually
from tests.unit.collector.datasets.conftest import Appliance
from tests.unit.collector.hand_clock import HandClock

SECRETS = ("wJalrXUtnFEMI", "AKIAEXAMPLE", "FwoGZXIvYXdz", "bearer-secret", "presigned-secret")
SOURCE = DatasetSource(
    kind=SourceKind.S3,
    url="s3://bucket/x?sig=presigned-secret",
    access_key_id="AKIAEXAMPLE",
    secret_access_key="wJalrXUtnFEMI",
    session_token="FwoGZXIvYXdz",
    bearer_token="bearer-secret",
)


@pytest.fixture
def portal() -> Iterator[DataPortal]:
    with data_portal() as running:
        yield running


@pytest.fixture
def appliance(tmp_path: Path, portal: DataPortal) -> Iterator[Appliance]:
    appliance = Appliance(tmp_path / "dgx-1", portal)
    yield appliance
    appliance.stager.close()


def attempt(*datasets: StagedDataset) -> AttemptSpec:
    return AttemptSpec(
        attempt_id="a",
        job_id="j",
        name="train",
        image="train",
        mounts=[Mount(source="/scratch", target="/scratch")],
        datasets=list(datasets),
    )


def test_an_attempt_waits_and_gets_its_datasets_as_read_only_mounts(
    appliance: Appliance, portal: DataPortal
) -> None:
    dataset = portal.add("imagenet", {"a": b"a" * 100_000})
    preparation, spec = DatasetPreparation(appliance.stager), attempt(dataset)
    appliance.wants(dataset)
    eventually(lambda: preparation.prepare(spec), what="the dataset")
    prepared = preparation.prepare(spec)
    assert prepared is not None
    tree = str(appliance.folder / "datasets/versions/imagenet/files")
    assert prepared.mounts == [*spec.mounts, Mount(source=tree, target="/data", is_read_only=True)]


def test_the_progress_names_dataset_and_amount(appliance: Appliance, portal: DataPortal) -> None:
    dataset = portal.add("imagenet", {"a": b"a" * 2**21})
    portal.fault = lambda path: 503 if "/parts/" in path else None
    preparation, spec = DatasetPreparation(appliance.stager), attempt(dataset)
    appliance.wants(dataset)
    eventually(lambda: appliance.stager.is_loaded, what="the cache")
    assert preparation.prepare(spec) is None
    eventually(lambda: "answered 503" in preparation.progress("a")[0], what="the reason")
    message, staging = preparation.progress("a")
    assert message.startswith("Fetching imagenet: 0 B of 2 MiB")
    assert "Trying again" in message
    assert staging is not None
    assert (staging.staged_bytes, staging.total_bytes) == (0, 2**21)


def test_after_a_restart_an_attempt_waits_for_the_credentials_of_the_portal(
    appliance: Appliance, portal: DataPortal
) -> None:
    dataset = portal.add("imagenet", {"a": b"a"})
    preparation, spec = DatasetPreparation(appliance.stager), attempt(dataset)
    eventually(lambda: appliance.stager.is_loaded, what="the cache")
    assert preparation.prepare(spec) is None
    assert "Waiting for the portal" in preparation.progress("a")[0]
    appliance.wants(dataset)
    eventually(lambda: preparation.prepare(spec), what="the dataset")


def test_what_is_cached_starts_without_the_portal(appliance: Appliance, portal: DataPortal) -> None:
    dataset = portal.add("imagenet", {"a": b"a"})
    appliance.stage(dataset)
    appliance.restart()
    preparation = DatasetPreparation(appliance.stager)
    eventually(lambda: preparation.prepare(attempt(dataset)), what="the dataset")


def test_an_agent_that_cannot_fetch_says_so() -> None:
    dataset = StagedDataset(
        version_id="v",
        name="imagenet",
        number=1,
        digest="0" * 64,
        file_count=1,
        total_bytes=1,
        source=SOURCE,
        target="/data",
    )
    with pytest.raises(PreparationError, match="extra `data`") as caught:
        DatasetPreparation(None).prepare(attempt(dataset))
    assert caught.value.reason == "data_unavailable"


def test_credentials_reach_the_stager_and_no_file(
    tmp_path: Path, hand_clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    model = SimulatedAppliance(SimulationConfig(seed="a"), started_at=hand_clock.now)
    received: list[DesiredState] = []
    runner = AttemptRunner(
        simulated_executor(model, clock=hand_clock, data_dir=tmp_path),
        state_path=tmp_path / "attempts.json",
        on_desired=received.append,
        clock=hand_clock,
    )
    dataset = StagedDataset(
        version_id="v",
        name="imagenet",
        number=1,
        digest="0" * 64,
        file_count=1,
        total_bytes=1,
        source=SOURCE,
        target="/data",
    )
    orders = DatasetOrders(
        prefetch=[dataset],
        pinned=[dataset],
        index=[IndexOrder(version_id="w", name="x", number=1, source=SOURCE)],
    )
    caplog.set_level("DEBUG")
    runner.set_desired(DesiredState(generation=1, attempts=[attempt(dataset)], datasets=orders))
    runner.step()
    stored = (tmp_path / "attempts.json").read_text()
    assert "imagenet" in stored
    assert not [secret for secret in SECRETS if secret in stored + caplog.text]
    assert received[0].attempts[0].datasets[0].source == SOURCE
    runner.close()
