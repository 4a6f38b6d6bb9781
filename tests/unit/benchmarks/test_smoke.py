"""The benchmarks run and print JSON; their figures are for people to read."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.shared import capacity, report

ROOT = Path(__file__).parents[3]


def documents_of(*arguments: str) -> dict[str, dict[str, Any]]:
    """Return what a quick run of benchmarks prints, by their names."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--quick", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    documents: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return documents


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("benchmarks")


@pytest.fixture(scope="module")
def document(folder: Path) -> dict[str, Any]:
    """What a quick run of a benchmark prints, of a single appliance."""
    options = ("--set", "appliances=1", "--folder", str(folder))
    return documents_of("backtest", *options)["backtest"]


@pytest.mark.nightly
def test_a_quick_run_of_one_benchmark_prints_its_figures(
    document: dict[str, Any], folder: Path
) -> None:
    assert document["results"]["seconds"]
    assert json.loads((folder / "backtest.json").read_text()) == document


@pytest.mark.nightly
def test_a_setting_of_a_plan_can_be_changed(document: dict[str, Any]) -> None:
    assert document["settings"]["appliances"] == 1
    assert document["results"]["groups"] == 8


@pytest.mark.nightly
def test_the_page_of_results_has_the_documents_of_a_run(document: dict[str, Any]) -> None:
    old_page = "## Queries\n\nAnother section.\n\n## Backtest\n\nOld figures.\n"
    page = report.page([document], old_page)
    assert "| groups | 8 |" in page
    assert "Another section." in page
    assert "Old figures." not in page


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_quick_run_of_all_benchmarks_prints_their_figures(tmp_path: Path) -> None:
    documents = documents_of("--folder", str(tmp_path))
    assert {path.stem for path in tmp_path.glob("*.json")} == set(documents)


def test_a_benchmark_without_its_peer_says_in_a_line_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda *_args, **_options: None)
    failed = CliRunner().invoke(main, ["staging", "--quick", "--folder", str(folder)])
    text = "Error: staging: rclone is missing: install the Debian package rclone"
    assert (failed.exit_code, failed.stderr.splitlines()[1:]) == (1, [text])


def test_the_page_of_capacity_follows_from_its_figures() -> None:
    text = capacity.PAGE.read_text("utf-8")

    assert capacity.page(text, []) == text


def test_a_quick_or_busy_run_changes_no_figure_of_capacity() -> None:
    text = "| `rules_cpu` | 1.26 | CPU seconds | `alert_rules`, 2026-11-23 |\n"
    document = {
        "benchmark": "alert_rules",
        "started_at": "2026-12-24T00:00:00Z",
        "command": "python -m benchmarks alert_rules",
        "machine": {"load1": 0.5, "cpu_count": 2},
        "results": {"vedette": {"cpu_seconds": 0.987654}},
    }
    quick = document | {"command": "python -m benchmarks alert_rules --quick"}
    busy = document | {"machine": {"load1": 5.0, "cpu_count": 2}}

    changed = capacity.figures(text, [document])

    assert changed == "| `rules_cpu` | 0.9877 | CPU seconds | `alert_rules`, 2026-12-24 |\n"
    assert capacity.figures(text, [quick, busy]) == text
