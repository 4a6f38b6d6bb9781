"""Settings of a relay, read once from file and environment.

`VEDETTE_RELAY_PORT=9443` in the environment wins over that in the file, which has variables or is
TOML; `VEDETTE_RELAY_CONFIG` names it.
"""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import SplitResult, urlsplit

from msgspec import Meta

from core.config import load_config, read_environment
from core.errors import ConfigurationError
from core.networks import parse_networks
from core.settings_file import read_settings_file
from protocol.relays import MAX_SAMPLES_BYTES

ENVIRONMENT_PREFIX = "VEDETTE_RELAY_"
CONFIG_VARIABLE = "VEDETTE_RELAY_CONFIG"
SYSTEM_FILE = Path("/etc/vedette/relay.env")
# What a request of samples has beside the body of its only write.
_ENVELOPE_BYTES = 64 * 1024
_MAX_TOKEN_BYTES = 4096

Seconds = Annotated[float, Meta(gt=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """All settings; `docs/relays.md` explains them."""

    upstream_url: str
    token: str = ""
    token_file: Path | None = None
    upstream_authority_file: Path | None = None
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=1, le=65535)] = 8443
    data_dir: Path = Path("/var/lib/vedette-relay")
    tls_certificate_file: Path | None = None
    tls_key_file: Path | None = None
    max_spool_bytes: Annotated[int, Meta(ge=2**20)] = 10 * 2**30
    min_free_disk_bytes: Annotated[int, Meta(ge=0)] = 2**30
    max_registry_age_seconds: Seconds = 7 * 24 * 3600.0
    max_drain_bytes_per_second: Annotated[float, Meta(ge=1024)] = 16.0 * 2**20
    max_body_bytes: Annotated[int, Meta(ge=1024, le=MAX_SAMPLES_BYTES - _ENVELOPE_BYTES)] = (
        25_000_000
    )
    max_upstream_connections: Annotated[int, Meta(ge=1, le=4096)] = 200
    max_tunnels: Annotated[int, Meta(ge=1)] = 4096
    max_connections: Annotated[int, Meta(ge=1)] = 16_384
    max_connections_per_address: Annotated[int, Meta(ge=1)] = 4096
    header_timeout_seconds: Seconds = 20.0
    body_timeout_seconds: Seconds = 30.0
    min_body_bytes_per_second: Annotated[float, Meta(gt=0)] = 1000.0
    write_timeout_seconds: Seconds = 30.0
    keep_alive_seconds: Seconds = 75.0
    monitoring_networks: str = "127.0.0.0/8, ::1/128"
    metrics_token: str = ""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_format: Literal["text", "json"] = "text"

    @property
    def upstream(self) -> str:
        """The address of the portal, without a trailing slash."""
        return self.upstream_url.rstrip("/")

    @property
    def spool_dir(self) -> Path:
        """Where writes wait for the portal."""
        return self.data_dir / "spool"

    @property
    def undeliverable_file(self) -> Path:
        """Lines that the portal did not store."""
        return self.data_dir / "undeliverable.log"

    @property
    def registry_file(self) -> Path:
        """The copy of the registry on disk."""
        return self.data_dir / "registry.json"

    @property
    def authorities_file(self) -> Path:
        """The CA certificates that sign agents' certificates."""
        return self.data_dir / "agent-authorities.pem"


def load_relay_settings(environ: Mapping[str, str] | None = None) -> RelaySettings:
    """Read the file of settings, then the environment on top.

    Raises:
        ConfigurationError: lists every error of both sources.
    """
    environ = os.environ if environ is None else environ
    path = _settings_file(environ)
    values, variables = read_settings_file(path) if path is not None else ({}, {})
    from_environment = read_environment({**variables, **environ}, prefix=ENVIRONMENT_PREFIX)
    values |= {key: value for key, value in from_environment.items() if key != "config"}
    source = f"{path} with the environment" if path is not None else "The environment"
    settings = load_config(RelaySettings, values, source=source)
    problems = [*_url_problems(settings), *_tls_problems(settings), *_token_problems(settings)]
    try:
        parse_networks(settings.monitoring_networks, setting="monitoring_networks")
    except ConfigurationError as error:
        problems += error.problems
    if problems:
        raise ConfigurationError(problems, source=source)
    return settings


def relay_token(settings: RelaySettings) -> str:
    """Return the relay's token, from its file if that is set.

    Raises:
        ConfigurationError: the file can't be read, or has no token.
    """
    if settings.token_file is None:
        return settings.token
    try:
        with settings.token_file.open("rb") as file:
            token = file.read(_MAX_TOKEN_BYTES).decode("ascii").strip()
        problem = "" if token else "is empty"
    except OSError as error:
        problem = f"can't be read: {error.strerror}"
    except UnicodeDecodeError:
        problem = "has no token: it is not text"
    if problem:
        raise ConfigurationError(
            [f"token_file {settings.token_file} {problem}"], source="The configuration"
        )
    return token


def upstream_tls(settings: RelaySettings) -> ssl.SSLContext | None:
    """Return how the portal's certificate is verified; None without TLS.

    Raises:
        ConfigurationError: `upstream_authority_file` can't be used.
    """
    if not settings.upstream.startswith("https:"):
        return None
    context = ssl.create_default_context()
    if settings.upstream_authority_file is not None:
        try:
            context.load_verify_locations(settings.upstream_authority_file)
        except OSError as error:
            problem = (
                f"upstream_authority_file {settings.upstream_authority_file} can't be used: "
                f"{error.strerror or error}"
            )
            raise ConfigurationError([problem], source="The configuration") from error
    return context


def _settings_file(environ: Mapping[str, str]) -> Path | None:
    named = environ.get(CONFIG_VARIABLE)
    if named is not None:
        return Path(named).expanduser() if named else None
    return SYSTEM_FILE if os.access(SYSTEM_FILE, os.R_OK) else None


def _url_problems(settings: RelaySettings) -> list[str]:
    hint = "write it like https://portal.example.com"
    try:
        url = urlsplit(settings.upstream)
        _ = url.port
    except ValueError:
        return [f"upstream_url is not a URL; {hint}"]
    if url.scheme not in {"http", "https"} or not url.hostname:
        return [f"upstream_url = {settings.upstream_url!r} is not a web address; {hint}"]
    if url.username or url.password or url.path or url.query or url.fragment:
        return [f"upstream_url may have scheme, host and port alone; {hint}"]
    if url.scheme == "http" and not _is_local(url):
        return ["upstream_url must begin with https:// because the token is sent to it"]
    return []


def _tls_problems(settings: RelaySettings) -> list[str]:
    if settings.tls_certificate_file is None and settings.tls_key_file is not None:
        return ["tls_key_file needs tls_certificate_file"]
    if settings.tls_certificate_file is None and not _is_local_url(settings.upstream):
        return ["tls_certificate_file is missing; set it, because agents send their tokens"]
    return []


def _token_problems(settings: RelaySettings) -> list[str]:
    if bool(settings.token) == (settings.token_file is not None):
        return ["set token or token_file to the token that the portal showed for this relay"]
    return []


def _is_local_url(url: str) -> bool:
    try:
        return _is_local(urlsplit(url))
    except ValueError:
        return False


def _is_local(url: SplitResult) -> bool:
    host = url.hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
