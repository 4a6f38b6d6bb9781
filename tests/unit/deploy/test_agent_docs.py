"""docs/agent.md and the role's README leave no setting out."""

from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from collector.config import AgentConfig

ROOT = Path(__file__).resolve().parents[3]
ROLE = ROOT / "ansible" / "roles" / "agent"
DEFAULTS = yaml.safe_load((ROLE / "defaults" / "main.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("key", [field.name for field in fields(AgentConfig)])
def test_every_setting_of_the_agent_is_documented(key: str) -> None:
    assert f"| `{key}` |" in (ROOT / "docs" / "agent.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("variable", sorted(DEFAULTS))
def test_every_variable_of_the_role_is_documented(variable: str) -> None:
    assert f"`{variable}`" in (ROLE / "README.md").read_text(encoding="utf-8")
