"""The agent's configuration: one TOML file, checked as a whole, with all errors reported together.

    portal_urls = ["https://portal.example.com"]
    data_dir = "/var/lib/vedette"

    [plugins.disk]
    interval_seconds = 60
    skip_mounts = ["/mnt/scratch"]

Each `[plugins.NAME]` has `enabled`, `interval_seconds`, `jitter_seconds`, `time_limit_seconds` and
the settings of that plugin.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from msgspec import Meta

from collector.datasets.settings import DatasetSettings, check_datasets
from collector.gang_networks.settings import NetworkSettings, check_network
from collector.logs.settings import UNIT_NAME, LogSettings
from collector.remote_write.settings import RemoteWriteSettings, check_remote_write
from collector.results.settings import ResultSettings
from collector.scheduler_tables import SCHEDULERS, check_schedulers
from collector.tls import TLSFiles, read_errors, tls_errors
from core.config import check_config, read_toml
from core.errors import ConfigurationError
from jobqueue.executors.settings import (
    KubernetesSettings,
    MesosSettings,
    RaySettings,
    ServerSettings,
    SlurmSettings,
)
from plugins.registry import load_plugin_class, plugin_names

Seconds = Annotated[float, Meta(gt=0)]
MEBIBYTE = 2**20

# Settings that can change without a restart.
LIVE_SETTINGS = frozenset(
    {
        "interval_seconds",
        "own_metrics_interval_seconds",
        "flush_interval_seconds",
        "heartbeat_interval_seconds",
        "attempts_interval_seconds",
        "poll_wait_seconds",
        "log_level",
        "plugins",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InfluxDBSettings:
    """`[influxdb]`: an InfluxDB, or a server with its write API, in place of a portal.

    Attributes:
        url: the server's address.
        bucket: where to write on InfluxDB 2 and 3, and on compatible servers.
        org: the bucket's organization.
        token: the API token; or in `token_file`, which is read at the start.
        database: where to write on InfluxDB 1.
        retention_policy: of the database; its default one when empty.
        username: for InfluxDB 1, with `password` or `password_file`.
        tags: added to every sample, beside `appliance`.
    """

    url: str
    bucket: str = ""
    org: str = ""
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    database: str = ""
    retention_policy: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    password_file: Path | None = None
    tags: dict[str, str] = field(default_factory=dict)

    def read_token(self) -> str:
        """Return the token, from its file if one is set."""
        return self.token or _read_secret(self.token_file)

    def read_password(self) -> str:
        """Return the password, from its file if one is set."""
        return self.password or _read_secret(self.password_file)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """The settings of an agent.

    Attributes:
        portal_urls: access points of the portal; the fastest healthy one is used.
        influxdb: where samples go in place of a portal.
        ca_file: trusted authorities (PEM), in place of the system's.
        client_certificate_file: client certificate for servers that require one.
        client_key_file: its key, unless the same file contains it.
        data_dir: folder for identity, buffer and attempts.
        name: the appliance's name at enrollment; its host name when empty.
        interval_seconds: default interval of plugins.
        own_metrics_interval_seconds: interval of the agent's own metrics.
        flush_interval_seconds: how often samples are written to disk; a crash loses at most this.
        buffer_max_bytes: size limit of the buffer; a week of a large server, see benchmarks.
        buffer_max_age_seconds: older samples are dropped.
        backlog_points_per_second: how fast old samples are sent after an outage.
        executor: `auto` uses a Docker engine once one responds; `marathon` the servers of the next
            four, and Docker for the kind of jobs for which there is none; `slurm`, `ray` and
            `kubernetes` the cluster of which this agent is the connector.
        marathon: runs services.
        metronome: runs one-time and scheduled jobs.
        chronos: does so where there is no Metronome.
        mesos: the Mesos agent on this appliance.
        slurm: the cluster that the agent stands for; likewise `ray` and `kubernetes`.
        docker_config_file: `config.json` with credentials of registries, in place of that in the
            home folder of the agent's user.
        container_pids_limit: most processes and threads of one container.
        network: how other appliances reach this one, for gangs' networks.
        mps_dir: folder of the sockets and logs of MPS, which all users of the host may open.
        poll_wait_seconds: how long the portal may delay the response to a long poll.
        logs: which lines of the host's logs are sent.
        results: the output folders of jobs, and their uploads.
        remote_write: where samples go beside the portal.
        datasets: the cache of datasets.
        plugins: settings of `[plugins.NAME]`, by name.
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
    executor: Literal[
        "auto", "docker", "marathon", "slurm", "ray", "kubernetes", "simulated", "none"
    ] = "auto"
    marathon: ServerSettings | None = None
    metronome: ServerSettings | None = None
    chronos: ServerSettings | None = None
    mesos: MesosSettings | None = None
    slurm: SlurmSettings | None = None
    ray: RaySettings | None = None
    kubernetes: KubernetesSettings | None = None
    docker_url: str = "unix:///var/run/docker.sock"
    docker_config_file: Path | None = None
    container_pids_limit: Annotated[int, Meta(ge=16)] = 4096
    network: NetworkSettings = field(default_factory=NetworkSettings)
    mps_dir: Path = Path("/run/vedette-mps")
    stop_grace_seconds: Annotated[float, Meta(ge=0)] = 10.0
    logs: LogSettings = field(default_factory=LogSettings)
    results: ResultSettings = field(default_factory=ResultSettings)
    remote_write: RemoteWriteSettings | None = None
    datasets: DatasetSettings = field(default_factory=DatasetSettings)
    plugins: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CommonSettings:
    enabled: bool | None = None
    interval_seconds: Seconds | None = None
    jitter_seconds: Annotated[float, Meta(ge=0)] = 0.0
    time_limit_seconds: Seconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings(_CommonSettings):
    """The settings of one plugin; None is the plugin's default."""

    name: str
    config: object


def load_agent_config(path: Path, *, data_dir: Path | None = None) -> AgentConfig:
    """Read and check the agent's file.

    Args:
        path: the file.
        data_dir: the folder for all of the agent's files, which the file may leave out.

    Raises:
        ConfigurationError: lists all errors, including those of the plugins' tables.
    """
    values = read_toml(path)
    if data_dir is not None:
        values = {"data_dir": str(data_dir), **values}
    flat = {key: value for key, value in values.items() if key not in {*_TABLES, *SCHEDULERS}}
    config, errors = check_config(AgentConfig, flat)
    errors += _destination_errors(values)
    if data_dir is not None and config is not None:
        errors += _data_dir_errors(config.data_dir, data_dir)
    tables, scheduler_errors = check_schedulers(values)
    errors += scheduler_errors
    for name in _TABLES.keys() & values:
        settings, table_errors = _TABLES[name](values[name])
        errors += table_errors
        tables |= {} if settings is None else {name: settings}
    config = replace(config, **tables) if config is not None else None
    if config is not None:
        files = TLSFiles(config.ca_file, config.client_certificate_file, config.client_key_file)
        errors += tls_errors(files)
    plugins = values.get("plugins")
    errors += check_plugin_tables(plugins)[1] if isinstance(plugins, Mapping) else []
    if config is None or errors:
        raise ConfigurationError(errors, source=str(path))
    return config


def check_influxdb(table: object) -> tuple[InfluxDBSettings | None, list[str]]:
    """Return the settings of `[influxdb]` and all their errors."""
    if not isinstance(table, Mapping):
        return None, [f"influxdb = {table!r}: expected a table [influxdb]"]
    settings, errors = check_config(InfluxDBSettings, table, prefix="influxdb.")
    url = str(table.get("url", "http://given"))
    if not _is_http_url(url):
        errors.append(f"influxdb.url = {url!r}: must start with http:// or https://")
    if bool(table.get("bucket")) == bool(table.get("database")):
        errors.append("influxdb needs either bucket (version 2 and later) or database (version 1)")
    for secret in ("token", "password"):
        path = table.get(f"{secret}_file")
        if path is not None and table.get(secret):
            errors.append(f"influxdb has both {secret} and {secret}_file; set one")
        elif path is not None:
            errors += read_errors(f"influxdb.{secret}_file", Path(str(path)))
    return settings, errors


def _check_logs(table: object) -> tuple[LogSettings | None, list[str]]:
    if not isinstance(table, Mapping):
        return None, [f"logs = {table!r}: expected a table [logs]"]
    settings, errors = check_config(LogSettings, table, prefix="logs.")
    for unit in settings.units if settings is not None else []:
        if not UNIT_NAME.fullmatch(unit):
            errors.append(f"logs.units has {unit!r}: write the unit's full name, docker.service")
    return settings, errors


def _check_results(table: object) -> tuple[ResultSettings | None, list[str]]:
    if not isinstance(table, Mapping):
        return None, [f"results = {table!r}: expected a table [results]"]
    return check_config(ResultSettings, table, prefix="results.")


def plugin_settings(config: AgentConfig) -> list[PluginSettings]:
    """Return the settings of all plugins, including those without a table.

    Raises:
        ConfigurationError: a table has errors.
    """
    settings, errors = check_plugin_tables(config.plugins)
    if errors:
        raise ConfigurationError(errors, source="The plugins' configuration")
    configured = {plugin.name for plugin in settings}
    return settings + [
        PluginSettings(name=name, config=load_plugin_class(name).config_class())
        for name in plugin_names()
        if name not in configured
    ]


def check_plugin_tables(tables: Mapping[str, object]) -> tuple[list[PluginSettings], list[str]]:
    """Return the settings of each `[plugins.NAME]` and all their errors."""
    settings, errors = [], []
    names = plugin_names()
    for name, table in tables.items():
        if name not in names:
            errors.append(_unknown_plugin(name))
        elif not isinstance(table, Mapping):
            errors.append(f"plugins.{name} = {table!r}: expected a table [plugins.{name}]")
        else:
            checked, own_errors = _check_table(name, table)
            errors += own_errors
            settings += [checked] if checked else []
    return settings, errors


def apply_live_settings(running: AgentConfig, new: AgentConfig) -> AgentConfig:
    """Return the running configuration with the new values that need no restart."""
    return replace(running, **{key: getattr(new, key) for key in LIVE_SETTINGS})


def changed_settings(running: AgentConfig, new: AgentConfig) -> list[str]:
    """Return the settings that differ."""
    names = [setting.name for setting in fields(AgentConfig)]
    return [name for name in names if getattr(running, name) != getattr(new, name)]


def restart_settings(running: AgentConfig, new: AgentConfig) -> list[str]:
    """Return the settings that differ and need a restart."""
    return [name for name in changed_settings(running, new) if name not in LIVE_SETTINGS]


def _check_table(name: str, table: Mapping[str, Any]) -> tuple[PluginSettings | None, list[str]]:
    prefix = f"plugins.{name}."
    common_keys = _CommonSettings.__dataclass_fields__.keys()
    shared = {key: value for key, value in table.items() if key in common_keys}
    own = {key: value for key, value in table.items() if key not in common_keys}
    config_class: type[object] = load_plugin_class(name).config_class
    common, common_errors = check_config(_CommonSettings, shared, prefix=prefix)
    config, own_errors = check_config(config_class, own, prefix=prefix, siblings=common_keys)
    if common is None or config is None:
        return None, common_errors + own_errors
    values = {key: getattr(common, key) for key in common_keys}
    return PluginSettings(name=name, config=config, **values), []


def _unknown_plugin(name: str) -> str:
    near = difflib.get_close_matches(name, plugin_names(), n=1)
    hint = f"did you mean {near[0]}?" if near else f"available: {', '.join(plugin_names())}"
    return f"plugins.{name}: unknown plugin; {hint}"


def _destination_errors(values: Mapping[str, object]) -> list[str]:
    urls = values.get("portal_urls")
    if "influxdb" in values:
        return ["portal_urls and [influxdb] are both set; set only one"] if urls else []
    if "portal_urls" not in values:
        return ["portal_urls is missing; set it, or [influxdb] to run without a portal"]
    if not isinstance(urls, list):
        return []  # already reported as an error of the key
    if not urls:
        return ["portal_urls is empty; set at least one address"]
    return [
        f"portal_urls contains {url!r}, which must start with http:// or https://"
        for url in urls
        if not _is_http_url(str(url))
    ]


def _data_dir_errors(configured: Path, chosen: Path) -> list[str]:
    """Return an error if identity and buffer would be in different folders."""
    if configured.resolve() == chosen.resolve():
        return []
    problem = f"data_dir = {str(configured)!r} is not the folder of --data-dir, which is {chosen}"
    return [f"{problem}; remove data_dir, or run with --data-dir {configured}"]


def _is_http_url(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in {"http", "https"} and bool(parts.netloc)


def _read_secret(path: Path | None) -> str:
    return path.read_text(encoding="utf-8").strip() if path is not None else ""


_TABLES: Mapping[str, Callable[[object], tuple[Any, list[str]]]] = {
    "influxdb": check_influxdb,
    "logs": _check_logs,
    "datasets": check_datasets,
    "network": check_network,
    "results": _check_results,
    "remote_write": check_remote_write,
}
