"""Puts together what brings samples away: access points, TLS, target and sender."""

import os
import socket
from dataclasses import dataclass
from random import Random

from collector.buffering.buffer import DiskBuffer
from collector.certificates.own_certificate import CERTIFICATE_NAME, OwnCertificate
from collector.certificates.portal_authority import trusted_files
from collector.config import AgentConfig
from collector.configuring.tls_files import TLSFiles
from collector.identity import Identity
from collector.sending.addresses import PortalAddresses
from collector.sending.influxdb_target import InfluxDBTarget
from collector.sending.link import PortalLink
from collector.sending.probes import AccessPointProber
from collector.sending.sender import Sender
from collector.sending.targets import APITarget, WriteTarget
from collector.sending.tls import TLSContexts
from collector.sending.transfer import PortalTransfer
from collector.sending.undeliverable import UndeliverableLines
from core.clock import Clock

UNDELIVERABLE_NAME = "undeliverable.log"
BUFFER_NAME = "buffer"


@dataclass(frozen=True, slots=True)
class Delivery:
    """What brings samples away.

    Attributes:
        addresses: the access points, which link and sender share.
        tls: trust and client certificate, which they share too.
        certificate: what the portal gave to show.
        sender: drains the buffer.
        prober: asks the access points; None where there is only one.
    """

    addresses: PortalAddresses
    tls: TLSContexts
    sender: Sender
    prober: AccessPointProber | None
    certificate: OwnCertificate


def build_buffer(config: AgentConfig, *, clock: Clock) -> DiskBuffer:
    """Return the buffer that the configuration asks for."""
    return DiskBuffer(
        config.data_dir / BUFFER_NAME,
        max_bytes=config.buffer_max_bytes,
        max_age_seconds=config.buffer_max_age_seconds,
        clock=clock,
        backlog_points_per_second=config.backlog_points_per_second,
    )


def build_delivery(
    config: AgentConfig,
    identity: Identity | None,
    buffer: DiskBuffer,
    *,
    clock: Clock,
    random: Random | None = None,
) -> Delivery:
    """Return the sender to the portal, or to the InfluxDB that stands in its place.

    Args:
        config: says where to.
        identity: proves to a portal who this is; not needed for an InfluxDB.
        buffer: what is to be sent.
        clock: the time.
        random: jitter of the waits.
    """
    tls = build_tls(config)
    is_shown = config.client_certificate_file is None
    certificate = OwnCertificate(config.data_dir, is_shown=is_shown)
    urls = config.portal_urls if config.influxdb is None else [config.influxdb.url]
    addresses = PortalAddresses(urls)
    sender = Sender(
        buffer,
        addresses,
        _build_target(config, identity, tls=tls, certificate=certificate),
        clock=clock,
        undeliverable=UndeliverableLines(config.data_dir / UNDELIVERABLE_NAME),
        random=random,
    )
    prober = None
    if len(addresses) > 1:
        timeout_seconds = config.request_timeout_seconds
        prober = AccessPointProber(addresses, tls=tls, timeout_seconds=timeout_seconds)
    return Delivery(addresses, tls, sender, prober, certificate)


def build_tls(config: AgentConfig) -> TLSContexts:
    """Return whom the configuration trusts and what certificate it shows."""
    given = (config.ca_file, config.client_certificate_file, config.client_key_file)
    if config.influxdb is not None:
        return TLSContexts(TLSFiles(*given))
    own_file = config.data_dir / CERTIFICATE_NAME
    return TLSContexts(TLSFiles(*given, own_file, also_trusted=trusted_files(config.data_dir)))


def build_link(
    config: AgentConfig, identity: Identity, delivery: Delivery, *, clock: Clock
) -> PortalLink:
    """Return a connection to the portal, for one thread."""
    return PortalLink(
        delivery.addresses,
        agent_token=identity.agent_token,
        timeout_seconds=config.request_timeout_seconds,
        tls=delivery.tls,
        certificate=delivery.certificate,
        clock=clock,
    )


def build_transfer(
    config: AgentConfig, identity: Identity | None, delivery: Delivery
) -> PortalTransfer | None:
    """Return what times the line to the portal; None where there is no portal."""
    if identity is None:
        return None
    return PortalTransfer(
        delivery.addresses,
        agent_token=identity.agent_token,
        timeout_seconds=config.request_timeout_seconds,
        tls=delivery.tls,
        certificate=delivery.certificate,
    )


def _build_target(
    config: AgentConfig,
    identity: Identity | None,
    *,
    tls: TLSContexts,
    certificate: OwnCertificate,
) -> WriteTarget:
    if config.influxdb is not None:
        return InfluxDBTarget(
            config.influxdb,
            appliance=config.name or socket.gethostname(),
            tls=tls,
            timeout_seconds=config.request_timeout_seconds,
            environ=os.environ,
        )
    return APITarget(
        token=identity.agent_token if identity is not None else "",
        tls=tls,
        timeout_seconds=config.request_timeout_seconds,
        environ=os.environ,
        is_token_needed=lambda url: not certificate.is_enough_for(url),
    )
