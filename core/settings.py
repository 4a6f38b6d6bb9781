"""Settings of the cloud side (portal, access, scheduler), read once from file and environment.

`VEDETTE_PORT=9000` in the environment wins over that in the file. `DATABASE_URL` and
`TIMESERIES_URL` are also read without the prefix, as most platforms set them.
"""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from msgspec import Meta

from core.config import load_config, read_environment
from core.errors import ConfigurationError
from core.ids import new_secret
from core.networks import Network, parse_networks
from core.secret_file import load_or_create_secret
from core.settings_file import read_settings_file, settings_file

ENVIRONMENT_PREFIX = "VEDETTE_"
UNPREFIXED = {"DATABASE_URL": "database_url", "TIMESERIES_URL": "timeseries_url"}
# Variables with the prefix that are not settings of the server.
NOT_SETTINGS = frozenset({"config", "url", "token", "parent_pid"})
RELAY_PREFIX = "relay_"
# Of addresses for replies: their token, with its +, takes the rest of the 64 that there may be.
MAX_SUPPORT_LOCAL_LENGTH = 18

Seconds = Annotated[float, Meta(gt=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """All settings; the defaults suit the embedded server."""

    data_dir: Path = Path("var")
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=1, le=65535)] = 8000
    public_url: str = ""
    internal_url: str = ""
    database_url: str = ""
    timeseries_url: str = ""
    redis_url: str = ""
    job_domain: str = ""
    log_url: str = ""
    data_url: str = ""
    backup_url: str = ""
    backup_password_file: Path | None = None
    backup_interval_seconds: Annotated[float, Meta(ge=60)] = 6 * 3600.0
    backup_retention_days: Annotated[int, Meta(ge=1)] = 30
    max_log_bytes_per_job: Annotated[int, Meta(ge=65536)] = 16 * 1024 * 1024
    max_log_bytes_per_tenant: Annotated[int, Meta(ge=1024 * 1024)] = 10 * 1024**3
    max_sessions_per_job: Annotated[int, Meta(ge=1)] = 8
    max_job_sessions_per_tenant: Annotated[int, Meta(ge=1)] = 100
    job_session_idle_seconds: Seconds = 30 * 60.0
    max_copy_bytes: Annotated[int, Meta(ge=1024)] = 50 * 1024**3
    store_memory_mib: Annotated[int, Meta(ge=0)] = 0
    store_cache_mib: Annotated[int, Meta(ge=16)] = 1024
    store_threads: Annotated[int, Meta(ge=0)] = 0
    secret_key: str = ""
    encryption_keys: str = ""
    log_level: str = "INFO"
    log_format: Literal["text", "json"] = "text"
    monitoring_networks: str = "127.0.0.0/8, ::1/128"
    metrics_token: str = ""
    smtp_url: str = ""
    mail_from: str = "vedette@localhost"
    support_address: str = ""
    support_imap_url: str = ""
    support_response_seconds: Seconds = 24 * 3600.0
    support_retention_days: Annotated[int, Meta(ge=30)] = 1095
    webhook_timeout_seconds: Seconds = 10.0
    webhook_allowed_networks: str = ""
    oidc_issuer: str = ""
    oidc_client_id: str = ""
    oidc_client_secret: str = ""
    oidc_scopes: str = "openid email profile"
    oidc_groups_claim: str = "groups"
    oidc_roles: str = ""
    oidc_trust_email: bool = False
    oidc_label: str = "Sign in with your organization"
    registry_url: str = ""
    registry_internal_url: str = ""
    registry_shared_namespace: str = "base"
    tls_certificate_file: Path | None = None
    tls_key_file: Path | None = None
    tls_authority_file: Path | None = None
    proxy_secret: str = ""
    trusted_proxies: str = ""
    require_client_certificate: bool = False
    certificate_lifetime_seconds: Seconds = 7 * 24 * 3600.0
    session_lifetime_seconds: Seconds = 7 * 24 * 3600.0
    stale_after_seconds: Seconds = 30.0
    unreachable_after_seconds: Seconds = 90.0
    lost_after_seconds: Seconds = 600.0
    silent_after_seconds: Seconds = 300.0
    placement_interval_seconds: Seconds = 1.0
    evaluation_interval_seconds: Seconds = 10.0
    evaluation_delay_seconds: Annotated[float, Meta(ge=0)] = 0.0
    notification_interval_seconds: Seconds = 2.0
    rule_pack: bool = True
    event_retention_days: Annotated[int, Meta(ge=1)] = 180
    job_retention_days: Annotated[int, Meta(ge=1)] = 365
    sample_retention_days: Annotated[int, Meta(ge=1)] = 14
    five_minute_retention_days: Annotated[int, Meta(ge=1)] = 90
    hour_retention_days: Annotated[int, Meta(ge=1)] = 730
    max_body_bytes: Annotated[int, Meta(ge=1024)] = 25_000_000
    appliance_log_retention_days: Annotated[int, Meta(ge=1)] = 30
    max_appliance_log_bytes_per_tenant: Annotated[int, Meta(ge=0)] = 5 * 1024**3
    max_forward_queue_bytes_per_tenant: Annotated[int, Meta(ge=0)] = 256 * 1024**2
    max_log_bytes_per_second_per_appliance: Annotated[float, Meta(ge=0)] = 65_536.0
    max_log_bytes_per_second_per_tenant: Annotated[float, Meta(ge=0)] = 2_097_152.0
    max_series_per_tenant: Annotated[int, Meta(ge=0)] = 200_000
    max_measurements_per_tenant: Annotated[int, Meta(ge=0)] = 1_000
    max_fields_per_tenant: Annotated[int, Meta(ge=0)] = 2_000
    max_messages_per_user_per_hour: Annotated[int, Meta(ge=0)] = 30
    max_messages_per_tenant_per_hour: Annotated[int, Meta(ge=0)] = 500
    max_alert_messages_per_tenant_per_hour: Annotated[int, Meta(ge=0)] = 3_000
    max_points_per_second_per_tenant: Annotated[float, Meta(ge=0)] = 0.0
    portal_threads: Annotated[int, Meta(ge=1)] = 16
    max_connections: Annotated[int, Meta(ge=1)] = 16_384
    max_connections_per_address: Annotated[int, Meta(ge=1)] = 4096
    header_timeout_seconds: Seconds = 20.0
    body_timeout_seconds: Seconds = 30.0
    min_body_bytes_per_second: Annotated[float, Meta(gt=0)] = 1000.0
    write_timeout_seconds: Seconds = 30.0
    keep_alive_seconds: Seconds = 75.0
    drain_seconds: Annotated[float, Meta(ge=0, le=25)] = 0.0
    requests_per_second_per_user: Annotated[float, Meta(ge=0)] = 50.0
    requests_per_second_per_address: Annotated[float, Meta(ge=0)] = 100.0
    auth_failures_per_second_per_address: Annotated[float, Meta(ge=0)] = 5.0
    fleet_advice_weeks: Annotated[int, Meta(ge=1, le=13)] = 4
    marketplace: bool = False
    marketplace_sign_up: bool = False
    marketplace_admits_customers: bool = False
    public_requests_per_second_per_address: Annotated[float, Meta(ge=0)] = 5.0
    marketplace_fee_percent: Annotated[float, Meta(ge=0, le=100)] = 10.0
    marketplace_terms_url: str = ""
    reputation_half_life_days: Annotated[int, Meta(ge=7, le=365)] = 60
    marketplace_requires_verification: bool = True
    verification_image: str = "python:3.13-slim"
    verification_interval_seconds: Annotated[float, Meta(ge=3600)] = 7 * 24 * 3600.0
    verification_accepts_simulated: bool = False
    billing_currency: Annotated[str, Meta(pattern="^[A-Z]{3}$")] = "EUR"
    billing_issuer: Annotated[str, Meta(max_length=500)] = ""
    tax_percent: Annotated[float, Meta(ge=0, le=100)] = 0.0

    @property
    def resolved_database_url(self) -> str:
        """The database URL, or the SQLite file in the data folder."""
        return self.database_url or f"sqlite:///{self.data_dir / 'vedette.db'}"

    @property
    def resolved_timeseries_url(self) -> str:
        """The store's URL, or the DuckDB file in the data folder."""
        return self.timeseries_url or f"duckdb:///{self.data_dir / 'samples.duckdb'}"

    @property
    def resolved_job_domain(self) -> str:
        """The domain whose subdomains are the origins of jobs' web pages; empty is none.

        Browsers resolve every name below `localhost` to this machine.
        """
        is_local = urlsplit(self.resolved_public_url).hostname in {"127.0.0.1", "localhost", "::1"}
        return self.job_domain.lower().strip(".") or ("jobs.localhost" if is_local else "")

    @property
    def resolved_log_url(self) -> str:
        """The folder of the logs of ended attempts, or the one in the data folder."""
        return self.log_url or str((self.data_dir / "job-logs").absolute())

    @property
    def resolved_data_url(self) -> str:
        """The folder or bucket of uploads and results, or the folder in the data folder."""
        return self.data_url or str((self.data_dir / "data").absolute())

    @property
    def data_folder(self) -> Path | None:
        """The folder of uploads and results; None if they are in a bucket."""
        place = self.resolved_data_url.removeprefix("file://")
        return None if "://" in place else Path(place).absolute()

    @property
    def exports_dir(self) -> Path:
        """Where exports of removed tenants are stored."""
        return self.data_dir / "exports"

    @property
    def resolved_public_url(self) -> str:
        """The address that users and agents open, without a trailing slash."""
        return (self.public_url or self._url_at(self.host)).rstrip("/")

    @property
    def resolved_internal_url(self) -> str:
        """Where other processes of the portal reach this one, without a trailing slash."""
        host = socket.gethostname() if _is_any_address(self.host) else self.host
        return (self.internal_url or self._url_at(host)).rstrip("/")

    def _url_at(self, host: str) -> str:
        scheme = "https" if self.tls_certificate_file is not None else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def proxy_networks(self) -> tuple[Network, ...]:
        """The proxies whose forwarded addresses are trusted."""
        return parse_networks(self.trusted_proxies, setting="trusted_proxies")

    @property
    def monitors(self) -> tuple[Network, ...]:
        """The networks that may read `/metrics` and the details of `/readyz`."""
        return parse_networks(self.monitoring_networks, setting="monitoring_networks")

    @property
    def webhook_networks(self) -> tuple[Network, ...]:
        """The private networks that webhooks may reach."""
        return parse_networks(self.webhook_allowed_networks, setting="webhook_allowed_networks")


def _is_any_address(host: str) -> bool:
    """Return whether a listen address stands for all addresses of this host."""
    with suppress(ValueError):
        return ip_address(host).is_unspecified
    return False


def load_server_settings(environ: Mapping[str, str] | None = None) -> ServerSettings:
    """Read the file of settings, then the environment on top.

    Without `environ`, what the file sets is also set in the environment of this process: libraries
    read variables, such as those of buckets, by themselves.

    Raises:
        ConfigurationError: lists every error of both sources.
    """
    path = settings_file(os.environ if environ is None else environ)
    values, variables = read_settings_file(path) if path is not None else ({}, {})
    if environ is None:
        os.environ.update({**variables, **os.environ})
        environ = os.environ
    from_environment = read_environment(
        {**variables, **environ}, prefix=ENVIRONMENT_PREFIX, also=UNPREFIXED
    )
    values |= {
        key: value
        for key, value in from_environment.items()
        if key not in NOT_SETTINGS and not key.startswith(RELAY_PREFIX)
    }
    source = f"{path} with the environment" if path is not None else "The environment"
    settings = load_config(ServerSettings, values, source=source)
    _check_urls(settings, source=source)
    _check_redis_url(settings, source=source)
    _check_support(settings, source=source)
    _check_networks(settings, source=source)
    _check_certificates(settings, source=source)
    return settings


def _check_support(settings: ServerSettings, *, source: str) -> None:
    """Refuse a mailbox for replies that could not be used."""
    address, url = settings.support_address, settings.support_imap_url
    errors = []
    local, _, domain = address.partition("@")
    if address and (not domain or "+" in local or not 1 <= len(local) <= MAX_SUPPORT_LOCAL_LENGTH):
        errors.append(
            f"support_address is {address!r}; use an address such as support@example.com, with at "
            f"most {MAX_SUPPORT_LOCAL_LENGTH} characters before the @, and no +"
        )
    if url and urlsplit(url).scheme not in {"imap", "imaps"}:
        errors.append("support_imap_url is invalid; use imaps://user:password@host:993/INBOX")
    if bool(address) != bool(url):
        errors.append("support_address and support_imap_url need each other; set both or none")
    if errors:
        raise ConfigurationError(errors, source=source)


def _check_urls(settings: ServerSettings, *, source: str) -> None:
    """Refuse URLs that can't be parsed; the store's has a parser of its own."""
    from sqlalchemy import make_url  # noqa: PLC0415 - agents have settings, but no database
    from sqlalchemy.exc import ArgumentError  # noqa: PLC0415

    broken = []
    for name in ("database_url", "public_url", "internal_url", "smtp_url", "support_imap_url"):
        url = getattr(settings, name)
        try:
            if name == "database_url" and url:
                make_url(url)
            elif name != "database_url":
                _ = urlsplit(url).port
        except (ValueError, ArgumentError):
            broken.append(name)
    if broken:
        # What the parsers say may have a part of a password.
        hint = (
            "its port must be a number up to 65535, an IPv6 address stands in [brackets], and a "
            "password with / ? # @ or : must be percent-encoded"
        )
        raise ConfigurationError([f"{name} is not a URL: {hint}" for name in broken], source=source)


def _check_redis_url(settings: ServerSettings, *, source: str) -> None:
    if not settings.redis_url:
        return
    from core.redis_broker import redis_url_problem  # noqa: PLC0415 - only where Redis is used

    problem = redis_url_problem(settings.redis_url)
    if problem:
        raise ConfigurationError([f"redis_url {problem}"], source=source)


def _check_networks(settings: ServerSettings, *, source: str) -> None:
    problems: list[str] = []
    for name in ("trusted_proxies", "webhook_allowed_networks", "monitoring_networks"):
        try:
            parse_networks(getattr(settings, name), setting=name)
        except ConfigurationError as error:
            problems += error.problems
    if problems:
        raise ConfigurationError(problems, source=source)


def _check_certificates(settings: ServerSettings, *, source: str) -> None:
    if not settings.require_client_certificate:
        return
    if settings.tls_certificate_file is None and not settings.proxy_secret:
        problem = (
            "require_client_certificate needs tls_certificate_file, or proxy_secret if a proxy "
            "terminates TLS"
        )
        raise ConfigurationError([problem], source=source)


def secret_key(settings: ServerSettings) -> str:
    """Return the key that signs sessions: the configured one, or one stored in the data folder."""
    if settings.secret_key:
        return settings.secret_key
    path = settings.data_dir / "secret_key"
    return load_or_create_secret(path, lambda: new_secret("key")).strip()
