"""docs/agent.md and the READMEs of the roles leave no setting out."""

from dataclasses import fields
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from collector.config import AgentConfig
from collector.scheduler_tables import CLUSTER_TABLES
from protocol.clusters import option_names

ROOT = Path(__file__).resolve().parents[3]
COLLECTION = ROOT / "ansible" / "ansible_collections" / "vedette" / "platform"
VARIABLES = [
    (path.parents[1], variable)
    for path in sorted(COLLECTION.glob("roles/*/defaults/main.yml"))
    for variable in yaml.safe_load(path.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("key", [field.name for field in fields(AgentConfig)])
def test_every_setting_of_the_agent_is_documented(key: str) -> None:
    assert f"| `{key}` |" in (ROOT / "docs" / "agent.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("table", "key"),
    [
        (table, field.name)
        for table, settings in CLUSTER_TABLES.items()
        for field in fields(settings)
    ],
)
def test_every_setting_of_a_cluster_is_documented(table: str, key: str) -> None:
    text = (ROOT / "docs" / "agent.md").read_text(encoding="utf-8")
    section = text.partition("\n## Clusters\n")[2].partition("\n## ")[0]
    shared = section.partition("| key of `[")[0]
    own = section.partition(f"| key of `[{table}]`")[2].partition("| key of `[")[0]
    assert f"| `{key}` |" in shared + own


def test_every_option_of_a_cluster_is_documented() -> None:
    text = (ROOT / "docs" / "jobs.md").read_text(encoding="utf-8")
    assert [name for name in option_names() if f"| `{name}` |" not in text] == []


@pytest.mark.parametrize(("role", "variable"), VARIABLES)
def test_every_variable_of_a_role_is_documented(role: Path, variable: str) -> None:
    assert f"`{variable}`" in (role / "README.md").read_text(encoding="utf-8")


def test_the_collection_has_the_version_of_vedette() -> None:
    galaxy = yaml.safe_load((COLLECTION / "galaxy.yml").read_text(encoding="utf-8"))

    assert galaxy["version"] == version("vedette")
