"""The agent's file: defaults, and all faults at once with the nearest right spelling."""

from pathlib import Path

import pytest

from collector.config import check_plugin_tables, load_agent_config, plugin_settings
from core.errors import ConfigurationError
from plugins.disk.reader import DiskConfig


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "agent.toml"
    path.write_text(text, encoding="utf-8")
    return path


def faults_of(path: Path) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load_agent_config(path)
    return caught.value.problems


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
    settings = {plugin.name: plugin for plugin in plugin_settings(config)}
    assert settings["disk"].interval_seconds == 60
    assert settings["disk"].config == DiskConfig(skip_mounts=("/mnt/*",))
    assert settings["load"].enabled is False
    assert settings["cpu"].enabled is None


def test_all_errors_are_reported_together_with_the_nearest_spelling(tmp_path: Path) -> None:
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
    assert "portal_urls contains 'portal.example.com'" in text
    assert "plugins.netwrok: unknown plugin; did you mean network?" in text
    assert "did you mean plugins.disk.skip_mounts?" in text
    assert "plugins.disk.interval_seconds = -1" in text
    assert len(faults) == 6


def test_a_missing_address_is_named(tmp_path: Path) -> None:
    assert "portal_urls is missing; set it, or [influxdb] to run without a portal" in faults_of(
        written(tmp_path, "")
    )


def test_no_address_at_all_is_a_fault(tmp_path: Path) -> None:
    faults = faults_of(written(tmp_path, "portal_urls = []"))
    assert faults == ["portal_urls is empty; set at least one address"]


def test_an_influxdb_may_stand_in_for_the_portal(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    config = load_agent_config(
        written(
            tmp_path,
            '[influxdb]\nurl = "http://127.0.0.1:8086"\nbucket = "vitals"\n'
            f'token_file = "{tmp_path}/token"\ntags = {{ site = "cellar" }}\n',
        )
    )
    assert config.portal_urls == []
    assert config.influxdb is not None
    assert config.influxdb.read_token() == "secret"
    assert config.influxdb.tags == {"site": "cellar"}


def test_portal_and_influxdb_together_are_a_fault(tmp_path: Path) -> None:
    text = 'portal_urls = ["http://p"]\n[influxdb]\nurl = "http://127.0.0.1:8086"\nbucket = "b"\n'
    assert faults_of(written(tmp_path, text)) == [
        "portal_urls and [influxdb] are both set; set only one"
    ]


def test_all_errors_of_the_influxdb_table_are_listed(tmp_path: Path) -> None:
    faults = faults_of(
        written(
            tmp_path,
            '[influxdb]\nurl = "127.0.0.1"\nbuckett = "b"\ntoken = "t"\ntoken_file = "/nowhere"\n'
            'password_file = "/nowhere"\n',
        )
    )
    assert faults == [
        "influxdb.buckett is not a setting; did you mean influxdb.bucket?",
        "influxdb.url = '127.0.0.1': must start with http:// or https://",
        "influxdb needs either bucket (version 2 and later) or database (version 1)",
        "influxdb has both token and token_file; set one",
        "influxdb.password_file = '/nowhere': can't be read: No such file or directory",
    ]


def test_secrets_are_in_no_message(tmp_path: Path) -> None:
    text = '[influxdb]\nurl = "http://x"\ndatabase = "d"\nusername = "u"\npassword = "hush"\n'
    assert "hush" not in repr(load_agent_config(written(tmp_path, text)))


def test_tls_files_are_checked_when_the_file_is_read(tmp_path: Path) -> None:
    text = 'portal_urls = ["https://p"]\nca_file = "/nowhere"\nclient_key_file = "/nowhere"\n'
    assert faults_of(written(tmp_path, text)) == [
        "ca_file = '/nowhere': can't be read: No such file or directory",
        "client_key_file is set without client_certificate_file; set both",
    ]


def test_a_misspelt_key_of_a_plugin_may_be_one_that_all_plugins_have() -> None:
    _, faults = check_plugin_tables({"uptime": {"interval_secs": 3}})
    [fault] = faults
    assert fault.endswith("is not a setting; did you mean plugins.uptime.interval_seconds?")


def test_servers_of_a_mesos_cluster_are_checked_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    config = load_agent_config(
        written(
            tmp_path,
            'portal_urls = ["https://portal.example.com"]\nexecutor = "marathon"\n'
            f'[marathon]\nurl = "https://m.example.com"\ntoken_file = "{tmp_path}/token"\n'
            '[mesos]\nhostname = "gpu-1"\n',
        )
    )
    assert config.marathon is not None
    assert config.marathon.url == "https://m.example.com"
    assert config.mesos is not None
    assert (config.mesos.url, config.mesos.hostname) == ("", "gpu-1")
    faults = faults_of(
        written(
            tmp_path,
            'portal_urls = ["https://portal.example.com"]\n'
            '[marathon]\nurl = "marathon:8080"\nusername = "alice"\ntoken_file = "/missing"\n'
            '[metronome]\nulr = "http://m"\n'
            '[chronos]\nurl = "http://c"\n',
        )
    )
    text = "\n".join(faults)
    assert "marathon.url = 'marathon:8080': must start with http" in text
    assert "marathon needs username and password_file together" in text
    assert "marathon has both username and token_file" in text
    assert "marathon.token_file = '/missing': can't be read" in text
    assert "metronome.ulr is not a setting; did you mean" in text
    assert "[metronome] and [chronos] are both set" in text
    assert 'set executor = "marathon"' in text
    assert "needs a table [marathon]" in "".join(
        faults_of(written(tmp_path, 'portal_urls = ["http://p"]\nexecutor = "marathon"\n'))
    )
