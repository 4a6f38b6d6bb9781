"""`vedette data-settings` and `job run --dataset`; copies, prefetches and pins of datasets."""

import pytest

from core.db import SessionFactory
from tests.cast import NOON, Cast
from tests.fixtures.in_process import run_vedette
from tests.unit.cli.conftest import EnvironOf
from tests.unit.jobqueue.builders import dispatch
from tests.unit.jobqueue.dataset_builders import (
    TIB,
    add_dataset,
    add_stager,
    copy_of,
    report_copies,
)


@pytest.fixture
def environ(sessions: SessionFactory, cast: Cast, environ_of: EnvironOf) -> dict[str, str]:
    """Alice's, with a dataset that is half on dgx-01."""
    with sessions.begin() as session:
        version = add_dataset(session, cast.acme).versions[0]
        report_copies(
            session,
            add_stager(session, cast.acme, "dgx-01"),
            copy_of(version, cached_bytes=TIB),
        )
    return environ_of(cast.alice)


def test_data_settings_are_printed_and_changed(environ: dict[str, str]) -> None:
    def run(*words: str, status: int = 0) -> str:
        done = run_vedette("data-settings", *words, environ=environ)
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    assert "allows_peers: false" in run()
    changed = run("--allow-peers", "--results-retention-days", "90")
    assert "allows_peers: true" in changed
    assert "results_retention_days: 90" in changed
    assert "results_retention_days: null" in run("--results-retention-days", "0")
    assert "4000" in run("--results-retention-days", "4000", status=1)


def test_a_job_is_run_copied_and_explained_with_a_dataset(
    environ: dict[str, str], sessions: SessionFactory
) -> None:
    options = ("--image", "acme/train:1", "--name", "train", "--dataset", "imagenet:/data")
    tried = run_vedette("job", "run", *options, "--dry-run", environ=environ)
    assert "Data:           dgx-01: 1 of 2 TiB cached" in tried.stdout
    assert run_vedette("job", "run", *options, environ=environ).returncode == 0
    copied = run_vedette("job", "clone", "train", "--name", "again", environ=environ)
    assert copied.returncode == 0, copied.stderr
    with sessions.begin() as session:
        dispatch(session, now=NOON)
    shown = run_vedette("job", "show", "again", "-o", "json", environ=environ).stdout
    assert '"version": 1' in shown
    refused = run_vedette("job", "run", *options[:4], "--dataset", "imagenet", environ=environ)
    assert "NAME@VERSION:TARGET" in refused.stderr
    unknown = run_vedette("job", "run", *options[:4], "--dataset", "x:/data", environ=environ)
    assert "There is no dataset 'x'" in unknown.stderr


def test_the_help_of_data_settings_is_for_machines_without_a_server(
    environ: dict[str, str],
) -> None:
    done = run_vedette("data-settings", "--help", environ=environ)
    assert "--allow-peers" in done.stdout
