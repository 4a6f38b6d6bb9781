"""`[remote_write]` of `agent.toml`: where samples go beside the portal."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta

from collector.tls import TLSFiles, tls_errors
from core.config import check_config
from plugins.prometheus.relabeling import RelabelRule

_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteWriteSettings:
    """A server with Prometheus' remote_write, such as Prometheus, VictoriaMetrics or Mimir.

    Attributes:
        url: the whole address, such as `https://prometheus.example.com/api/v1/write`.
        username: for HTTP Basic, with `password_file`.
        password_file: is read at each request.
        bearer_token_file: a token in place of these, read at each request.
        headers: more headers, such as `X-Scope-OrgID`.
        ca_file: trusted authorities (PEM), in place of the system's.
        client_certificate_file: the client certificate, if the server wants one.
        client_key_file: its key, unless the same file contains it.
        timeout_seconds: of a request.
        external_labels: added to samples that lack them; `appliance` is the agent's name by
            default.
        relabel: rules for samples, with the keys of Prometheus' `write_relabel_configs`.
    """

    url: str
    username: str = ""
    password_file: Path | None = None
    bearer_token_file: Path | None = None
    headers: dict[str, str] = field(default_factory=dict)
    ca_file: Path | None = None
    client_certificate_file: Path | None = None
    client_key_file: Path | None = None
    timeout_seconds: Annotated[float, Meta(gt=0)] = 10.0
    external_labels: dict[str, str] = field(default_factory=dict)
    relabel: tuple[RelabelRule, ...] = ()

    @property
    def tls_files(self) -> TLSFiles:
        """The files for https."""
        return TLSFiles(self.ca_file, self.client_certificate_file, self.client_key_file)


def check_remote_write(table: object) -> tuple[RemoteWriteSettings | None, list[str]]:
    """Return the settings of `[remote_write]` and all their errors."""
    if not isinstance(table, Mapping):
        return None, [f"remote_write = {table!r}: expected a table [remote_write]"]
    settings, errors = check_config(RemoteWriteSettings, table, prefix="remote_write.")
    if settings is None:
        return None, errors
    parts = urlsplit(settings.url)
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        errors.append(f"remote_write.url = {settings.url!r}: must start with http:// or https://")
    if settings.bearer_token_file and (settings.username or settings.password_file):
        errors.append("remote_write has both bearer_token_file and username; set one")
    if bool(settings.username) != bool(settings.password_file):
        errors.append("remote_write needs username and password_file together")
    for path in (settings.password_file, settings.bearer_token_file):
        try:
            _ = path and path.expanduser().read_bytes()
        except OSError as error:
            errors.append(f"remote_write: {str(path)!r} can't be read: {error.strerror}")
    errors += [
        f"remote_write.external_labels has {name!r}, which is no name of a label"
        for name in settings.external_labels
        if not _LABEL.fullmatch(name)
    ]
    errors += [f"remote_write: {error}" for error in tls_errors(settings.tls_files)]
    return settings, errors
