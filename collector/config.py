"""The agent's configuration: one TOML file, checked as a whole, all faults reported together.

    portal_urls = ["https://portal.example.com"]
    data_dir = "/var/lib/vedette"

    [plugins.disk]
    interval_seconds = 60
    skip_mounts = ["/mnt/scratch"]

Each `[plugins.NAME]` takes `enabled`, `interval_seconds`, `jitter_seconds`, `time_limit_seconds`
and the settings of that plugin.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from msgspec import Meta

from collector.configuring.influxdb_settings import InfluxDBSettings, check_influxdb
from collector.configuring.tls_files import TLSFiles, tls_faults
from core.config import check_config, read_toml
from core.errors import ConfigurationError
from plugins.registry import load_plugin_class, plugin_names

Seconds = Annotated[float, Meta(gt=0)]
MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """What can be set on an appliance.

    Attributes:
        portal_urls: access points of the portal; the fastest that answers is used.
        influxdb: where samples go in place of a portal.
        ca_file: trusted authorities in PEM form, in place of the system's.
        client_certificate_file: what the agent shows to who asks for a certificate.
        client_key_file: its key, unless the same file holds it.
        data_dir: where identity, buffer and attempts are kept.
        name: what the appliance is called at enrolment; its host name when empty.
        interval_seconds: how often plugins are read that have no interval of their own.
        own_metrics_interval_seconds: how often the agent tells of itself.
        flush_interval_seconds: how often samples go to disk; a crash loses no more than this.
        buffer_max_bytes: room for what is not delivered; a week of a large server, see benchmarks.
        buffer_max_age_seconds: older samples are dropped.
        backlog_points_per_second: how fast old samples are sent after an outage.
        executor: `auto` uses a Docker engine from when one answers.
        poll_wait_seconds: how long the portal may hold the question what should run.
        plugins: `NAME` to the settings of `[plugins.NAME]`.
    """

    portal_urls: list[str] = field(default_factory=list)
    influxdb: InfluxDBSettings | None = None
    ca_file: Path | None = None
    client_certificate_file: Path | None = None
    client_key_file: Path | None = None
    data_dir: Path = Path("/var/lib/vedette")
    name: str = ""
    interval_seconds: Seconds = 10.0
    own_metrics_interval_seconds: Seconds = 10.0
    flush_interval_seconds: Seconds = 5.0
    heartbeat_interval_seconds: Seconds = 10.0
    attempts_interval_seconds: Seconds = 1.0
    poll_wait_seconds: Annotated[float, Meta(ge=0, le=60)] = 20.0
    request_timeout_seconds: Seconds = 10.0
    buffer_max_bytes: Annotated[int, Meta(ge=MEBIBYTE)] = 1024 * MEBIBYTE
    buffer_max_age_seconds: Seconds = 7 * 24 * 3600.0
    backlog_points_per_second: Annotated[float, Meta(gt=0)] = 2000.0
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    executor: Literal["auto", "docker", "simulated", "none"] = "auto"
    docker_url: str = "unix:///var/run/docker.sock"
    stop_grace_seconds: Annotated[float, Meta(ge=0)] = 10.0
    plugins: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings:
    """One plugin's part of the configuration; None leaves it to the plugin's default."""

    name: str
    config: object
    enabled: bool | None = None
    interval_seconds: float | None = None
    jitter_seconds: float = 0.0
    time_limit_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Generic:
    enabled: bool | None = None
    interval_seconds: Seconds | None = None
    jitter_seconds: Annotated[float, Meta(ge=0)] = 0.0
    time_limit_seconds: Seconds | None = None


def load_agent_config(path: Path) -> AgentConfig:
    """Read and check the agent's file.

    Raises:
        ConfigurationError: lists every fault, those of the plugins' tables included.
    """
    values = read_toml(path)
    flat = {key: value for key, value in values.items() if key != "influxdb"}
    config, faults = check_config(AgentConfig, flat)
    faults += _destination_faults(values)
    if "influxdb" in values:
        influxdb, own_faults = check_influxdb(values["influxdb"])
        faults += own_faults
        config = replace(config, influxdb=influxdb) if config is not None else None
    if config is not None:
        files = TLSFiles(config.ca_file, config.client_certificate_file, config.client_key_file)
        faults += tls_faults(files)
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
    config, own_faults = check_config(config_class, own, prefix=prefix, siblings=generic_keys)
    if generic is None or config is None:
        return None, generic_faults + own_faults
    return PluginSettings(
        name=name,
        config=config,
        enabled=generic.enabled,
        interval_seconds=generic.interval_seconds,
        jitter_seconds=generic.jitter_seconds,
        time_limit_seconds=generic.time_limit_seconds,
    ), []


def _unknown_plugin(name: str) -> str:
    near = difflib.get_close_matches(name, plugin_names(), n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(plugin_names())}"
    return f"plugins.{name}: there is no such plugin; {hint}"


def _destination_faults(values: Mapping[str, object]) -> list[str]:
    urls = values.get("portal_urls")
    if "influxdb" in values:
        return ["portal_urls and [influxdb] are both set; keep one"] if urls else []
    if "portal_urls" not in values:
        return ["portal_urls is missing; set it, or [influxdb] to do without a portal"]
    if not isinstance(urls, list):
        return []  # reported as a fault of the key already
    if not urls:
        return ["portal_urls is empty; give at least one address"]
    return [
        f"portal_urls has {url!r}; an address starts with http:// or https://"
        for url in urls
        if urlsplit(str(url)).scheme not in {"http", "https"} or not urlsplit(str(url)).netloc
    ]
