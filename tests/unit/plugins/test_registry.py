"""Every plugin is declared, documented, and named as docs/metrics.md names its readings."""

import dataclasses
import re
import tomllib
from pathlib import Path

import pytest

from core.quantities import unit_of
from plugins import registry
from plugins.base import MetricKind
from plugins.registry import BUILT_IN, ENTRY_POINT_GROUP, load_plugin_class, plugin_names

ROOT = Path(__file__).parents[3]


def documented_fields() -> set[str]:
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `\w+` \|(?:[^|]*\|)?(.*)\|$", text, flags=re.MULTILINE)
    return {name for row in rows for name in re.findall(r"\w+", row)}


def test_the_built_in_plugins_are_those_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"][ENTRY_POINT_GROUP] == BUILT_IN


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_plugin_has_its_name_and_a_frozen_config_with_defaults(name: str) -> None:
    plugin_class = load_plugin_class(name)
    assert plugin_class.name == name
    config = plugin_class.config_class()
    assert dataclasses.is_dataclass(config)
    with pytest.raises((dataclasses.FrozenInstanceError, TypeError)):
        config.interval = 1  # type: ignore[union-attr] # refused, which is the point


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_metric_is_in_the_list_that_everyone_uses(name: str) -> None:
    declared = {metric.name for metric in load_plugin_class(name).metrics}
    assert declared <= documented_fields()


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_rate_is_named_per_second_and_nothing_else_is(name: str) -> None:
    for metric in load_plugin_class(name).metrics:
        is_per_second = unit_of(metric.name).suffix.endswith("_per_second")
        assert is_per_second == (metric.kind is MetricKind.RATE), metric.name


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_readme_names_every_metric_and_setting(name: str) -> None:
    readme = (ROOT / "plugins" / name / "README.md").read_text(encoding="utf-8")
    plugin_class = load_plugin_class(name)
    settings = [field.name for field in dataclasses.fields(plugin_class.config_class)]
    words = [metric.name for metric in plugin_class.metrics] + settings
    assert [word for word in words if word not in readme] == []
    assert f"[plugins.{name}]" in readme


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_readme_gives_every_metric_the_kind_and_unit_that_it_has(name: str) -> None:
    readme = (ROOT / "plugins" / name / "README.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]+) \|", readme, flags=re.MULTILINE))
    declared = {
        (metric.name, str(metric.kind), metric.unit) for metric in load_plugin_class(name).metrics
    }
    assert declared - documented == set()


def test_a_suffix_means_the_same_unit_in_every_plugin() -> None:
    units: dict[str, set[str]] = {}
    for name in BUILT_IN:
        for metric in load_plugin_class(name).metrics:
            if suffix := unit_of(metric.name).suffix:
                units.setdefault(suffix, set()).add(metric.unit)
    assert {
        suffix: units_of_suffix
        for suffix, units_of_suffix in units.items()
        if len(units_of_suffix) > 1
    } == {}


def test_gpus_of_all_makers_are_measured_alike() -> None:
    kinds: dict[str, set[tuple[str, str]]] = {}
    for name in ("nvml", "amdgpu", "simulated_gpu"):
        for metric in load_plugin_class(name).metrics:
            kinds.setdefault(metric.name, set()).add((str(metric.kind), metric.unit))
    assert {name: declared for name, declared in kinds.items() if len(declared) > 1} == {}


def test_an_unknown_plugin_is_a_key_error() -> None:
    assert "cpu" in plugin_names()
    with pytest.raises(KeyError):
        load_plugin_class("cpuu")


def test_a_built_in_plugin_is_loaded_without_a_search_of_all_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(registry, "entry_points")
    assert load_plugin_class("cpu").name == "cpu"
