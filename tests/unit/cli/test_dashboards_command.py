"""`vedette dashboards` against a real portal."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import yaml
from jsonschema_rs import Draft202012Validator

from tests.cast import Cast
from tests.fixtures.in_process import Result, run_vedette
from tests.unit.cli.conftest import EnvironOf

DOCUMENTED = Path(__file__).parents[3] / "docs" / "dashboard.schema.json"
FILE = {
    "dashboards": [
        {
            "name": "Training",
            "is_shared": True,
            "panels": [
                {
                    "title": "Disks",
                    "chart": "table",
                    "measurement": "disk",
                    "fields": ["used_percent", "free_bytes"],
                    "aggregate": "last",
                    "group_by": ["appliance", "mount"],
                    "filters": {"mount": ["/"]},
                    "is_wide": True,
                }
            ],
        },
        {"name": "Empty", "panels": []},
    ]
}


@pytest.fixture
def vedette(environ_of: EnvironOf, cast: Cast) -> Callable[..., Result]:
    environ = environ_of(cast.bob)
    return partial(run_vedette, "dashboards", environ=environ)


def test_dashboards_are_applied_exported_and_removed(
    vedette: Callable[..., Result], tmp_path: Path
) -> None:
    file = tmp_path / "dashboards.yaml"
    file.write_text(yaml.safe_dump(FILE), encoding="utf-8")
    planned = vedette("apply", "--dry-run", "-f", str(file))
    assert planned.stdout == "create  Training\ncreate  Empty\n"
    assert vedette("ls", "-o", "name").stdout == ""
    assert vedette("apply", "-f", str(file)).stdout == planned.stdout
    assert vedette("apply", "-f", str(file)).stdout == "keep    Training\nkeep    Empty\n"
    assert yaml.safe_load(vedette("export", "Training").stdout) == {
        "dashboards": FILE["dashboards"][:1]
    }
    file.write_text(vedette("export").stdout.replace("used_percent", "used_bytes"))
    assert vedette("apply", "-f", str(file)).stdout == "keep    Empty\nupdate  Training\n"
    assert vedette("rm", "Empty").stdout == "Empty deleted\n"
    assert vedette("ls").stdout.split()[4:] == ["Training", "1", "yes", "bob@acme.example"]
    assert vedette("export", "Empty").returncode == 1
    # To update it: vedette dashboards schema > docs/dashboard.schema.json
    assert vedette("schema").stdout == DOCUMENTED.read_text(encoding="utf-8")
    validator = Draft202012Validator(json.loads(DOCUMENTED.read_text(encoding="utf-8")))
    assert list(validator.iter_errors(FILE)) == []
    assert len(list(validator.iter_errors({"dashboards": [{"nme": "x"}]}))) == 2


def test_nothing_of_a_wrong_file_is_applied(vedette: Callable[..., Result], tmp_path: Path) -> None:
    file = tmp_path / "dashboards.yaml"
    wrong = {"dashboards": [*FILE["dashboards"], {"name": "Empty"}, {"name": "x" * 101}]}
    file.write_text(yaml.safe_dump(wrong), encoding="utf-8")
    result = vedette("apply", "-f", str(file))
    assert result.returncode == 1
    assert "dashboards.1.name" in result.stderr
    assert "dashboards.3.name" in result.stderr
    assert vedette("ls", "-o", "name").stdout == ""
