"""Every plugin's `sample.toml` is what the plugin does without one."""

import dataclasses
import tomllib
from pathlib import Path

import pytest

from collector.config import check_plugin_tables
from plugins.registry import BUILT_IN, load_plugin_class

ROOT = Path(__file__).parents[3]


def sample(name: str) -> str:
    return (ROOT / "plugins" / name / "sample.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_sample_file_loads_and_has_every_default(name: str) -> None:
    tables = tomllib.loads(sample(name))["plugins"]
    assert list(tables) == [name]
    [settings], faults = check_plugin_tables(tables)
    assert faults == []
    assert settings.config == load_plugin_class(name).config_class()


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_sample_names_every_setting_with_a_comment(name: str) -> None:
    lines = sample(name).splitlines()
    for field in dataclasses.fields(load_plugin_class(name).config_class):
        [number] = [
            index
            for index, line in enumerate(lines)
            if line.lstrip("# ").partition("=")[0].strip() == field.name
        ]
        assert "#" in lines[number] or lines[number - 1].startswith("#"), field.name
