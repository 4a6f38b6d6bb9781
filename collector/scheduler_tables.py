"""The tables of schedulers in `agent.toml`, with all their errors.

`[marathon]`, `[metronome]`, `[chronos]` and `[mesos]` are of Mesos; `[slurm]`, `[ray]` and
`[kubernetes]` make the agent the connector of a cluster.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from collector.tls import read_errors
from core.config import check_config
from jobqueue.executors.settings import (
    KubernetesSettings,
    MesosSettings,
    RaySettings,
    ServerSettings,
    SlurmSettings,
)
from protocol.clusters import ClusterKind

_MESOS: Mapping[str, type[ServerSettings]] = {
    "marathon": ServerSettings,
    "metronome": ServerSettings,
    "chronos": ServerSettings,
    "mesos": MesosSettings,
}
CLUSTER_TABLES: Mapping[str, type[Any]] = {
    ClusterKind.SLURM: SlurmSettings,
    ClusterKind.RAY: RaySettings,
    ClusterKind.KUBERNETES: KubernetesSettings,
}
SCHEDULERS = (*_MESOS, *CLUSTER_TABLES)
EXECUTOR = "marathon"


def check_schedulers(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings by table, and all errors of the tables and between them."""
    settings: dict[str, Any] = {}
    errors = _contradictions(values)
    for name, kind in {**_MESOS, **CLUSTER_TABLES}.items():
        if name not in values:
            continue
        table = values[name]
        if not isinstance(table, Mapping):
            errors.append(f"{name} = {table!r}: expected a table [{name}]")
            continue
        settings[name], own_errors = check_config(kind, table, prefix=f"{name}.")
        errors += own_errors + _server_errors(name, table)
        if settings[name] is None:
            del settings[name]
    return settings, errors


def _contradictions(values: Mapping[str, Any]) -> list[str]:
    errors = []
    tables = [name for name in _MESOS if name in values]
    is_chosen = values.get("executor") == EXECUTOR
    if is_chosen and not set(tables) - {"mesos"}:
        errors.append(
            f'executor = "{EXECUTOR}" needs a table [marathon], [metronome] or [chronos] with url'
        )
    if tables and not is_chosen:
        errors.append(f'[{tables[0]}] is set; set executor = "{EXECUTOR}" to use it')
    if "metronome" in values and "chronos" in values:
        errors.append("[metronome] and [chronos] are both set; set the one that runs batch jobs")
    errors += [
        f'[{name}] is set; set executor = "{name}" to use it'
        for name in CLUSTER_TABLES
        if name in values and values.get("executor") != name
    ]
    if values.get("executor") == ClusterKind.RAY and "ray" not in values:
        errors.append('executor = "ray" needs a table [ray] with url')
    slurm = values.get("slurm")
    if isinstance(slurm, Mapping):
        errors += _slurm_errors(slurm)
    return errors


def _slurm_errors(table: Mapping[str, Any]) -> list[str]:
    errors = []
    if table.get("api") == "rest" and not (table.get("url") and table.get("token_file")):
        errors.append('slurm.api = "rest" needs slurm.url and slurm.token_file')
    if table.get("containers") == "oci" and not table.get("image_dir"):
        errors.append('slurm.containers = "oci" needs slurm.image_dir')
    return errors


def _server_errors(name: str, table: Mapping[str, Any]) -> list[str]:
    errors = []
    if "url" in table and not _is_url(name, str(table["url"])):
        errors.append(f"{name}.url = {table['url']!r}: must start with http:// or https://")
    if bool(table.get("username")) != bool(table.get("password_file")):
        errors.append(f"{name} needs username and password_file together")
    if table.get("username") and table.get("token_file"):
        errors.append(f"{name} has both username and token_file; set one")
    for key in ("password_file", "token_file", "ca_file", "kubeconfig"):
        if path := table.get(key):
            errors += read_errors(f"{name}.{key}", Path(str(path)))
    return errors


def _is_url(name: str, text: str) -> bool:
    if not text:
        return name in {"mesos", ClusterKind.SLURM}
    try:
        url = urlsplit(text)
    except ValueError:  # brackets of IPv6 that don't match
        return False
    if name == ClusterKind.SLURM and url.scheme == "unix":
        return bool(url.path)
    return url.scheme in {"http", "https"} and bool(url.netloc)
