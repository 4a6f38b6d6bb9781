"""The benchmarks run and print JSON; their figures are for people to read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def document_of(module: str, *options: str) -> dict[str, dict[str, object]]:
    """Return what a quick run of a benchmark prints."""
    done = subprocess.run(
        [sys.executable, "-m", module, "--quick", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    document: dict[str, dict[str, object]] = json.loads(done.stdout)
    return document


def test_a_quick_run_of_one_benchmark_prints_its_figures(tmp_path: Path) -> None:
    output = tmp_path / "plugins.json"
    document = document_of("benchmarks.plugins", "--output", str(output))
    assert document["results"]["load"]
    assert json.loads(output.read_text()) == document


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_quick_run_of_all_benchmarks_prints_their_figures(tmp_path: Path) -> None:
    document = document_of("benchmarks", "--folder", str(tmp_path))
    assert {path.stem for path in tmp_path.glob("*.json")} == set(document)
