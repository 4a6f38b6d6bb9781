"""The Ansible role's `agent.toml` of a connector is one that the agent accepts."""

import json
from pathlib import Path
from typing import Any

import jinja2
import pytest

from collector.config import load_agent_config

ROOT = Path(__file__).resolve().parents[3]
ROLE = ROOT / "ansible" / "ansible_collections" / "vedette" / "platform" / "roles" / "vedette_agent"


@pytest.mark.parametrize(
    ("executor", "table"),
    [
        ("slurm", {"partition": "gpu", "max_waiting": 50, "containers": "pyxis"}),
        ("ray", {"url": "http://127.0.0.1:8265", "headers": {"X-Proxy": "a b"}}),
        ("kubernetes", {"namespace": "acme", "gpu_resource": "amd.com/gpu"}),
    ],
)
def test_the_table_of_a_cluster(tmp_path: Path, executor: str, table: dict[str, Any]) -> None:
    # As Ansible renders templates.
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ROLE / "templates"),
        trim_blocks=True,
        autoescape=False,  # noqa: S701 - TOML, no HTML
    )
    environment.filters["to_json"] = json.dumps
    text = environment.get_template("agent.toml.j2").render(
        vedette_agent_portal_urls=["https://portal.example.com"],
        vedette_agent_data_dir=str(tmp_path),
        vedette_agent_name="login",
        vedette_agent_settings={"executor": executor, executor: table},
        vedette_agent_plugins={"disk": {"interval_seconds": 60}},
    )
    path = tmp_path / "agent.toml"
    path.write_text(text, encoding="utf-8")
    config = load_agent_config(path)
    settings = getattr(config, executor)
    assert config.executor == executor
    assert {name: getattr(settings, name) for name in table} == table
