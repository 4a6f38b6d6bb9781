"""The agent's file: defaults, and all faults at once with the nearest right spelling."""

from pathlib import Path

import pytest

from collector.config import load_agent_config, plugin_settings
from core.errors import ConfigurationError
from plugins.disk.reader import DiskConfig


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "agent.toml"
    path.write_text(text, encoding="utf-8")
    return path


def faults_of(path: Path) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load_agent_config(path)
    return caught.value.faults


def test_an_address_is_all_that_must_be_set(tmp_path: Path) -> None:
    config = load_agent_config(written(tmp_path, 'portal_urls = ["https://portal.example.com"]'))
    assert config.interval_seconds == 10
    assert config.executor == "auto"


def test_plugins_take_their_own_settings_and_the_shared_ones(tmp_path: Path) -> None:
    config = load_agent_config(
        written(
            tmp_path,
            'portal_urls = ["http://127.0.0.1:8000"]\n'
            "[plugins.disk]\ninterval_seconds = 60\nskip_mounts = ['/mnt/*']\n"
            "[plugins.load]\nenabled = false\n",
        )
    )
    settings = {one.name: one for one in plugin_settings(config)}
    assert settings["disk"].interval_seconds == 60
    assert settings["disk"].config == DiskConfig(skip_mounts=("/mnt/*",))
    assert settings["load"].enabled is False
    assert settings["cpu"].enabled is None


def test_all_faults_are_reported_together_with_the_nearest_spelling(tmp_path: Path) -> None:
    faults = faults_of(
        written(
            tmp_path,
            'portal_urls = ["portal.example.com"]\n'
            "intervall_seconds = 5\n"
            'executor = "podman"\n'
            "[plugins.netwrok]\n"
            "[plugins.disk]\nskip_mount = []\ninterval_seconds = -1\n",
        )
    )
    text = "\n".join(faults)
    assert "did you mean interval_seconds?" in text
    assert "executor = 'podman'" in text
    assert "'portal.example.com'; an address starts with http:// or https://" in text
    assert "plugins.netwrok: there is no such plugin; did you mean network?" in text
    assert "did you mean plugins.disk.skip_mounts?" in text
    assert "plugins.disk.interval_seconds = -1" in text
    assert len(faults) == 6


def test_a_missing_address_is_named(tmp_path: Path) -> None:
    assert "portal_urls is missing; set it" in faults_of(written(tmp_path, ""))


def test_no_address_at_all_is_a_fault(tmp_path: Path) -> None:
    faults = faults_of(written(tmp_path, "portal_urls = []"))
    assert faults == ["portal_urls is empty; give at least one address"]
