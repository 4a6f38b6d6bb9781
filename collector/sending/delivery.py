"""Builds the connections of the agent: buffer, access points, TLS, write target and sender."""

import os
import socket
from dataclasses import dataclass

from collector.buffering.buffer import DiskBuffer
from collector.buffering.undeliverable import UndeliverableLines
from collector.certificates import (
    CERTIFICATE_NAME,
    AgentCertificate,
    portal_authority_files,
)
from collector.config import AgentConfig, InfluxDBSettings
from collector.data_dir import Identity
from collector.sending.access_points import AccessPoints
from collector.sending.listed import AccessPointFile
from collector.sending.portal_connection import PortalConnection
from collector.sending.probing import AccessPointProber
from collector.sending.sender import Sender
from collector.sending.write_targets import InfluxDBTarget, WriteTarget, portal_target
from collector.tls import TLSContexts, TLSFiles
from core.clock import Clock

UNDELIVERABLE_NAME = "undeliverable.log"
BUFFER_NAME = "buffer"


@dataclass(frozen=True, slots=True)
class Delivery:
    """The parts that deliver samples.

    Attributes:
        access_points: shared by sender and connections.
        tls: authorities and client certificate, shared by them too.
        sender: drains the buffer.
        prober: measures the access points; None without a portal.
        certificate: the certificate that the portal issued.
    """

    access_points: AccessPoints
    tls: TLSContexts
    sender: Sender
    prober: AccessPointProber | None
    certificate: AgentCertificate


def build_buffer(config: AgentConfig, *, clock: Clock) -> DiskBuffer:
    """Return the buffer with the configured limits."""
    return DiskBuffer(
        config.data_dir / BUFFER_NAME,
        max_bytes=config.buffer_max_bytes,
        max_age_seconds=config.buffer_max_age_seconds,
        clock=clock,
        backlog_points_per_second=config.backlog_points_per_second,
        is_followed=config.remote_write is not None,
    )


def build_delivery(
    config: AgentConfig,
    identity: Identity | None,
    buffer: DiskBuffer,
    *,
    clock: Clock,
) -> Delivery:
    """Return the delivery to the portal, or to the InfluxDB in its place.

    Args:
        config: the destination.
        identity: authenticates the agent at a portal; not needed for an InfluxDB.
        buffer: what to send.
        clock: the time.
    """
    certificate = AgentCertificate(
        config.data_dir, is_active=config.client_certificate_file is None
    )
    tls = build_tls(config, certificate, clock=clock)
    prober = None
    if config.influxdb is not None:
        access_points = AccessPoints([config.influxdb.url])
        target: WriteTarget = _influxdb_target(config, config.influxdb, tls=tls)
    else:
        access_points = AccessPoints(
            config.portal_urls,
            key=identity.appliance_id if identity is not None else "",
            file=AccessPointFile(config.data_dir),
        )
        target = portal_target(
            identity.agent_token if identity is not None else "",
            is_token_needed=lambda url: not certificate.replaces_secret_for(url),
            access_points=access_points,
            tls=tls,
            timeout_seconds=config.request_timeout_seconds,
            environ=os.environ,
        )
        prober = AccessPointProber(
            access_points, tls=tls, timeout_seconds=config.request_timeout_seconds
        )
    sender = Sender(
        buffer,
        access_points,
        target,
        clock=clock,
        undeliverable=UndeliverableLines(config.data_dir / UNDELIVERABLE_NAME),
    )
    return Delivery(access_points, tls, sender, prober, certificate)


def build_tls(config: AgentConfig, certificate: AgentCertificate, *, clock: Clock) -> TLSContexts:
    """Return the configured authorities and client certificate, or the portal's."""
    files = (config.ca_file, config.client_certificate_file, config.client_key_file)
    if config.influxdb is not None:
        return TLSContexts(TLSFiles(*files))
    issued_file = config.data_dir / CERTIFICATE_NAME
    trusted = portal_authority_files(config.data_dir)
    return TLSContexts(
        TLSFiles(*files, issued_file, also_trusted=trusted),
        is_issued_expired=lambda: certificate.is_expired(clock()),
    )


def connect_to_portal(
    config: AgentConfig, identity: Identity, delivery: Delivery, *, clock: Clock
) -> PortalConnection:
    """Return a connection to the portal, for one thread."""
    return PortalConnection(
        delivery.access_points,
        agent_token=identity.agent_token,
        timeout_seconds=config.request_timeout_seconds,
        tls=delivery.tls,
        certificate=delivery.certificate,
        clock=clock,
    )


def _influxdb_target(
    config: AgentConfig, settings: InfluxDBSettings, *, tls: TLSContexts
) -> InfluxDBTarget:
    return InfluxDBTarget(
        settings,
        appliance=config.name or socket.gethostname(),
        tls=tls,
        timeout_seconds=config.request_timeout_seconds,
        environ=os.environ,
    )
