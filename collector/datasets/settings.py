"""`[datasets]` of `agent.toml`: the cache of datasets on this appliance."""

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta

from core.config import check_config

GIBIBYTE = 2**30
MAX_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSettings:
    """Where datasets are stored, and who may fetch them from here.

    Attributes:
        enabled: whether jobs with datasets may run here.
        cache_dir: the folder, best on a disk of its own; `datasets` in `data_dir` when unset.
        cache_max_bytes: size limit of the cache; what was used least recently is removed first.
        min_free_bytes: what the cache leaves free on its file system.
        peer_listen: address and port on which other appliances of the site fetch from this one.
        peer_url: how they reach it; made of `peer_listen` when empty.
        peer_max_connections: how many they may open.
        peer_max_bytes_per_second: what they get at most; 0 is no limit.
        peer_wait_seconds: how long this appliance waits for data that another one is fetching.
        retry_seconds: how long a source that does not answer is tried before a job fails.
    """

    enabled: bool = True
    cache_dir: Path | None = None
    cache_max_bytes: Annotated[int, Meta(ge=2**20)] = 1024 * GIBIBYTE
    min_free_bytes: Annotated[int, Meta(ge=0)] = 10 * GIBIBYTE
    peer_listen: str = ""
    peer_url: str = ""
    peer_max_connections: Annotated[int, Meta(ge=1, le=1024)] = 32
    peer_max_bytes_per_second: Annotated[int, Meta(ge=0)] = 0
    peer_wait_seconds: Annotated[float, Meta(gt=0)] = 30.0
    retry_seconds: Annotated[float, Meta(gt=0)] = 600.0

    @property
    def peer_address(self) -> tuple[str, int]:
        """Host and port of `peer_listen`."""
        parts = urlsplit(f"//{self.peer_listen}")
        return parts.hostname or "", parts.port or 0

    @property
    def public_url(self) -> str:
        """How peers reach this appliance; empty if it serves none."""
        return (self.peer_url or f"https://{self.peer_listen}") if self.peer_listen else ""


def check_datasets(table: object) -> tuple[DatasetSettings | None, list[str]]:
    """Return the settings of `[datasets]` and all their errors."""
    if not isinstance(table, Mapping):
        return None, [f"datasets = {table!r}: expected a table [datasets]"]
    settings, errors = check_config(DatasetSettings, table, prefix="datasets.")
    if settings is not None:
        errors += _address_errors(settings)
    return settings, errors


def _is_any_address(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def _address_errors(settings: DatasetSettings) -> list[str]:
    errors = []
    if settings.peer_listen:
        try:
            host, port = settings.peer_address
        except ValueError:
            host, port = "", 0
        if not host or not 0 < port <= MAX_PORT:
            errors.append(
                f"datasets.peer_listen = {settings.peer_listen!r}: "
                "expected address and port, such as 10.1.2.3:8444"
            )
        elif _is_any_address(host) and not settings.peer_url:
            errors.append(
                "datasets.peer_url is missing: peers can't reach the address of peer_listen"
            )
    if settings.peer_url and urlsplit(settings.peer_url).scheme != "https":
        errors.append(f"datasets.peer_url = {settings.peer_url!r}: must start with https://")
    if settings.peer_url and not settings.peer_listen:
        errors.append("datasets.peer_url is set without peer_listen; set both")
    return errors
