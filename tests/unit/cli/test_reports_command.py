"""`vedette reports` and `vedette dashboards view` against a real portal."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import yaml

from tests.cast import Cast
from tests.fixtures.in_process import Result, run_vedette
from tests.unit.cli.conftest import EnvironOf

WEEKLY = {
    "name": "Weekly",
    "kind": "jobs",
    "by": "user",
    "period": "last-week",
    "schedule": "0 7 * * 1",
    "file_format": "csv",
    "recipients": ["bob@acme.example"],
}


@pytest.fixture
def vedette(environ_of: EnvironOf, cast: Cast) -> Callable[..., Result]:
    return partial(run_vedette, environ=environ_of(cast.bob))


def test_reports_are_applied_downloaded_emailed_and_removed(
    vedette: Callable[..., Result], tmp_path: Path
) -> None:
    reports = partial(vedette, "reports")
    assert reports("ls").stderr.startswith("No saved reports yet")
    file = tmp_path / "reports.yaml"
    file.write_text(yaml.safe_dump({"reports": [WEEKLY]}), encoding="utf-8")
    assert reports("apply", "-f", str(file), "--dry-run").stdout == "create  Weekly\n"
    assert reports("ls", "-o", "name").stdout == ""
    assert reports("apply", "-f", str(file)).stdout == "create  Weekly\n"
    assert reports("apply", "-f", str(file)).stdout == "keep    Weekly\n"
    exported = reports("export", "Weekly").stdout
    assert yaml.safe_load(exported)["reports"] == [
        {**WEEKLY, "time_zone": "UTC", "target_percent": 99.0}
    ]
    file.write_text(exported.replace("last-week", "yesterday"), encoding="utf-8")
    assert reports("apply", "-f", str(file)).stdout == "update  Weekly\n"
    assert "jobs by user  yesterday" in reports("ls").stdout
    csv = tmp_path / "weekly.csv"
    assert reports("download", "Weekly", "-f", str(csv)).returncode == 0
    assert csv.read_text(encoding="utf-8").startswith("user,jobs,")
    assert reports("send", "Weekly").stdout == "1 email added to the outbox\n"
    assert reports("pause", "Weekly").stdout == "Weekly paused\n"
    assert reports("ls").stdout.splitlines()[1].split()[5] == "-"
    assert reports("resume", "Weekly").stdout == "Weekly resumed\n"
    assert reports("rm", "Weekly").stdout == "Weekly deleted\n"
    assert "No saved report has" in reports("rm", "Weekly").stderr
    # All of a file or nothing, with the errors of all its reports.
    bad = [WEEKLY, {**WEEKLY, "name": "A", "by": "rule"}, {**WEEKLY, "name": "B", "schedule": "x"}]
    file.write_text(yaml.safe_dump({"reports": bad}), encoding="utf-8")
    wrong = reports("apply", "-f", str(file))
    assert wrong.returncode == 1
    assert all(key in wrong.stderr for key in ("reports.1.by", "reports.2.schedule"))
    assert reports("ls", "-o", "name").stdout == ""
    file.write_text(yaml.safe_dump({"reports": [WEEKLY, WEEKLY]}), encoding="utf-8")
    assert "several reports 'Weekly'" in reports("apply", "-f", str(file)).stderr


def test_views_are_saved_listed_and_removed(vedette: Callable[..., Result]) -> None:
    view = partial(vedette, "dashboards", "view")
    assert view("ls").stderr.startswith("No views yet")
    for address in ("/dashboards/?range=6h", "/dashboards/?range=24h"):
        assert view("save", "Day", address, "--shared", "--start-page").stdout == "Day saved\n"
    row = view("ls").stdout.splitlines()[1].split()
    assert row == ["Day", "/dashboards/?range=24h", "yes", "yes", "bob@acme.example"]
    assert "not the address of a dashboard" in view("save", "Bad", "https://evil.example/").stderr
    assert view("rm", "Day").stdout == "Day deleted\n"
    assert view("ls", "-o", "name").stdout == ""
