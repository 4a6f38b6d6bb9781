"""Write tokens: what to paste on a host, and whether its samples have arrived."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from flask import render_template

from core.advertised_ca import advertised_ca
from portal.context import current_scope, database, now, portal
from tenants.fleet.states import effective_status_of
from tenants.models import Appliance, WriteToken
from tenants.write_tokens import get_write_token, hosts_of, is_single

CA_FILE = "/etc/ssl/vedette-ca.pem"
PLACEHOLDER = "vdw_YOUR_TOKEN"


@dataclass(frozen=True, slots=True)
class Configuration:
    """A file of a program that sends samples, or a command.

    Attributes:
        name: the key in the REST API.
        path: where it belongs.
        note: what else to know.
    """

    name: str
    title: str
    path: str
    note: str
    text: str


class WriteTokenState(StrEnum):
    """Whether samples have arrived with a token; `closed` is one that can't be used any longer."""

    WAITING = "waiting"
    RECEIVING = "receiving"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class WriteTokenProgress:
    """A token, its state and its hosts without an agent, the latest first."""

    token: WriteToken
    state: WriteTokenState
    hosts: list[Appliance]

    @property
    def statuses(self) -> Mapping[str, str]:
        """The status of each host by its id."""
        return {host.id: effective_status_of(host).value for host in self.hosts}


def configurations(token: WriteToken, secret: str = PLACEHOLDER) -> list[Configuration]:
    """Return what to paste for each kind of sender."""
    settings = portal().settings
    values = {
        "url": settings.resolved_public_url,
        "secret": secret,
        "ca_file": CA_FILE if advertised_ca(settings) is not None else "",
        "host": token.appliance_pattern if is_single(token.appliance_pattern) else "",
    }
    return [
        Configuration(name, title, path, note, render_template(f"senders/{file}", **values).strip())
        for name, title, file, path, note in _SENDERS
    ]


def ca_command() -> str:
    """Return the command that fetches the portal's private CA; empty if it has none."""
    settings = portal().settings
    authority = advertised_ca(settings)
    if authority is None:
        return ""
    url = f"{settings.resolved_public_url}/agent/v1/authority"
    return f"curl -fsSk {url} | sudo tee {CA_FILE} > /dev/null"


def write_token_progress(token_id: str) -> WriteTokenProgress:
    """Return the progress of a token of the current user's tenant."""
    with database() as session:
        token = get_write_token(session, current_scope(), token_id)
        hosts = hosts_of(session, current_scope(), token.id)
    if token.revoked_at is not None or token.expires_at <= now():
        state = WriteTokenState.CLOSED
    else:
        is_used = token.last_used_at is not None
        state = WriteTokenState.RECEIVING if is_used else WriteTokenState.WAITING
    return WriteTokenProgress(token, state, hosts)


_SENDERS = (
    (
        "telegraf",
        "Telegraf",
        "telegraf.conf",
        "/etc/telegraf/telegraf.d/vedette.conf",
        "Leave out inputs that another file has already. Then: systemctl restart telegraf",
    ),
    (
        "collectd",
        "collectd",
        "collectd.conf",
        "/etc/collectd/collectd.conf.d/vedette.conf",
        "Leave out plugins that are loaded already. Then: systemctl restart collectd",
    ),
    (
        "prometheus",
        "Prometheus",
        "prometheus.yml",
        "/etc/prometheus/prometheus.yml",
        "Each scraped host becomes an appliance. Then: systemctl reload prometheus",
    ),
    (
        "otel_collector",
        "OpenTelemetry Collector",
        "otel-collector.yaml",
        "/etc/otelcol-contrib/config.yaml",
        "resourcedetection gives each metric its host.name.",
    ),
    (
        "vmagent",
        "vmagent",
        "vmagent.sh",
        "a shell, or its unit",
        "scrape.yml lists what to scrape, as for Prometheus.",
    ),
)
