"""The agent's configuration: one TOML file, checked as a whole, all faults reported together.

    portal_urls = ["https://portal.example.com"]
    data_dir = "/var/lib/vedette"

    [plugins.disk]
    interval_seconds = 60
    skip_mounts = ["/mnt/scratch"]

Each `[plugins.NAME]` takes `enabled`, `interval_seconds` and the settings of that plugin.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from msgspec import Meta

from core.config import check_config, read_toml
from core.errors import ConfigurationError
from plugins.registry import load_plugin_class, plugin_names

Seconds = Annotated[float, Meta(gt=0)]
MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """What can be set on an appliance.

    Attributes:
        portal_urls: access points of the portal; the next is tried when one does not answer.
        data_dir: where identity, buffer and attempts are kept.
        name: what the appliance is called at enrolment; its host name when empty.
        interval_seconds: how often plugins are read that have no interval of their own.
        flush_interval_seconds: how often samples go to disk; a crash loses no more than this.
        buffer_max_bytes: enough for a week of an eight-GPU server at 10 s.
        buffer_max_age_seconds: older samples are dropped.
        executor: `auto` uses a Docker engine from when one answers.
        poll_wait_seconds: how long the portal may hold the question what should run.
        plugins: `NAME` to the settings of `[plugins.NAME]`.
    """

    portal_urls: list[str]
    data_dir: Path = Path("/var/lib/vedette")
    name: str = ""
    interval_seconds: Seconds = 10.0
    flush_interval_seconds: Seconds = 5.0
    heartbeat_interval_seconds: Seconds = 10.0
    attempts_interval_seconds: Seconds = 1.0
    poll_wait_seconds: Annotated[float, Meta(ge=0, le=60)] = 20.0
    request_timeout_seconds: Seconds = 10.0
    buffer_max_bytes: Annotated[int, Meta(ge=MEBIBYTE)] = 512 * MEBIBYTE
    buffer_max_age_seconds: Seconds = 7 * 24 * 3600.0
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    executor: Literal["auto", "docker", "simulated", "none"] = "auto"
    docker_url: str = "unix:///var/run/docker.sock"
    stop_grace_seconds: Annotated[float, Meta(ge=0)] = 10.0
    plugins: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings:
    """One plugin's part of the configuration; `enabled` None leaves it to the plugin's default."""

    name: str
    config: object
    enabled: bool | None = None
    interval_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Generic:
    enabled: bool | None = None
    interval_seconds: Seconds | None = None


def load_agent_config(path: Path) -> AgentConfig:
    """Read and check the agent's file.

    Raises:
        ConfigurationError: lists every fault, those of the plugins' tables included.
    """
    values = read_toml(path)
    config, faults = check_config(AgentConfig, values)
    faults += _url_faults(values.get("portal_urls"))
    tables = values.get("plugins")
    faults += check_plugin_tables(tables)[1] if isinstance(tables, Mapping) else []
    if config is None or faults:
        raise ConfigurationError(faults, source=str(path))
    return config


def plugin_settings(config: AgentConfig) -> list[PluginSettings]:
    """Return the settings of every plugin there is, those without a table included.

    Raises:
        ConfigurationError: a table has faults.
    """
    settings, faults = check_plugin_tables(config.plugins)
    if faults:
        raise ConfigurationError(faults, source="The plugins' configuration")
    configured = {one.name for one in settings}
    return settings + [
        PluginSettings(name=name, config=load_plugin_class(name).config_class())
        for name in plugin_names()
        if name not in configured
    ]


def check_plugin_tables(tables: Mapping[str, object]) -> tuple[list[PluginSettings], list[str]]:
    """Return the settings of each `[plugins.NAME]` and all their faults."""
    settings, faults = [], []
    for name, table in tables.items():
        if name not in plugin_names():
            faults.append(_unknown_plugin(name))
        elif not isinstance(table, Mapping):
            faults.append(f"plugins.{name} = {table!r}: expected a table [plugins.{name}]")
        else:
            one, own_faults = _check_table(name, table)
            faults += own_faults
            settings += [one] if one else []
    return settings, faults


def _check_table(name: str, table: Mapping[str, Any]) -> tuple[PluginSettings | None, list[str]]:
    prefix = f"plugins.{name}."
    generic_keys = _Generic.__dataclass_fields__.keys()
    shared = {key: value for key, value in table.items() if key in generic_keys}
    own = {key: value for key, value in table.items() if key not in generic_keys}
    config_class: type[object] = load_plugin_class(name).config_class
    generic, generic_faults = check_config(_Generic, shared, prefix=prefix)
    config, own_faults = check_config(config_class, own, prefix=prefix)
    if generic is None or config is None:
        return None, generic_faults + own_faults
    return PluginSettings(
        name=name,
        config=config,
        enabled=generic.enabled,
        interval_seconds=generic.interval_seconds,
    ), []


def _unknown_plugin(name: str) -> str:
    near = difflib.get_close_matches(name, plugin_names(), n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(plugin_names())}"
    return f"plugins.{name}: there is no such plugin; {hint}"


def _url_faults(urls: object) -> list[str]:
    if not isinstance(urls, list):
        return []  # reported as a fault of the key already
    if not urls:
        return ["portal_urls is empty; give at least one address"]
    return [
        f"portal_urls has {url!r}; an address starts with http:// or https://"
        for url in urls
        if urlsplit(str(url)).scheme not in {"http", "https"} or not urlsplit(str(url)).netloc
    ]
