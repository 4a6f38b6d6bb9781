"""Renewal of the agent's client certificate, and metrics about it.

A certificate that the admin configured takes precedence over the portal's: it is only monitored.
"""

import logging
from collections.abc import Callable, Mapping
from random import Random
from threading import Event

from collector.certificates import (
    CHECK_INTERVAL_SECONDS,
    AgentCertificate,
    ConfiguredCertificate,
    portal_authority_files,
)
from collector.config import AgentConfig
from collector.data_dir import Identity
from collector.errors import (
    CertificateError,
    CollectorError,
    PortalRefusedError,
    PortalUnreachableError,
)
from collector.periodic_task import PeriodicTask
from collector.sending.access_points import AccessPoints
from collector.sending.delivery import Delivery, connect_to_portal
from collector.sending.portal_connection import PortalConnection
from collector.tls import TLSContexts, TLSFiles
from core.clock import Clock
from protocol.enrollment import IssuedCertificate, RenewalRequest

log = logging.getLogger(__name__)

# Spreads the renewals of appliances that were enrolled together.
JITTER_RATIO = 0.1
# This portal issues no certificates.
NOT_OFFERED = frozenset({404, 405})
NOT_OFFERED_WAIT_SECONDS = 3600.0


class CertificateRenewal:
    """Renews the certificate that the portal issued.

    Args:
        certificate: what to renew; the first one is requested where there is none.
        access_points: certificates are requested over https only.
        connect: opens a connection that presents the current certificate.
        connect_with_token: opens one that sends the token instead, for a certificate that expired
            while the appliance was off.
        clock: the time.
        random: jitter.

    Attributes:
        failures: failed renewals since the agent started.
    """

    def __init__(
        self,
        certificate: AgentCertificate,
        access_points: AccessPoints,
        *,
        connect: Callable[[], PortalConnection],
        connect_with_token: Callable[[], PortalConnection],
        clock: Clock,
        random: Random | None = None,
    ) -> None:
        self._certificate = certificate
        self._access_points = access_points
        self._connect = connect
        self._connect_with_token = connect_with_token
        self._clock = clock
        self._request: RenewalRequest | None = None
        self.failures = 0
        self._early_ratio = (random or Random()).random() * JITTER_RATIO  # noqa: S311 - no secret

    def step(self) -> float:
        """Renew the certificate if it is due; return the seconds until the next check.

        Raises:
            PortalUnreachableError: the next step tries again.
            PortalRefusedError: the portal issued none.
        """
        if not self._access_points.current.startswith("https:"):
            return CHECK_INTERVAL_SECONDS
        remaining_seconds = self._certificate.seconds_until_renewal(
            self._clock(), early_ratio=self._early_ratio
        )
        if remaining_seconds:
            return min(remaining_seconds, CHECK_INTERVAL_SECONDS)
        try:
            issued = self._renew()
        except (PortalUnreachableError, PortalRefusedError) as error:
            if isinstance(error, PortalRefusedError) and error.http_status in NOT_OFFERED:
                return NOT_OFFERED_WAIT_SECONDS
            self.failures += 1
            self._certificate.record_failure(error.message, now=self._clock())
            raise
        log.info("renewed the certificate, valid for %.0f s", issued.lifetime_seconds)
        return 0.0

    def _renew(self) -> IssuedCertificate:
        try:
            # All attempts use one key: the portal may have signed it although no response arrived.
            self._request = self._request or RenewalRequest(csr=self._certificate.create_request())
            issued = self._send(self._request)
            self._certificate.store(issued, now=self._clock())
            self._request = None
        except CertificateError as error:
            self._request = None
            raise PortalUnreachableError(error.message) from error
        return issued

    def _send(self, request: RenewalRequest) -> IssuedCertificate:
        try:
            return _send_once(self._connect(), request)
        except (PortalUnreachableError, PortalRefusedError) as error:
            if isinstance(error, PortalRefusedError) and error.http_status in NOT_OFFERED:
                raise
            try:
                return _send_once(self._connect_with_token(), request)
            except (PortalUnreachableError, PortalRefusedError) as second:
                raise _combined(error, second) from second


def _combined(first: CollectorError, with_token: CollectorError) -> CollectorError:
    """Return one error for both attempts.

    A failed handshake looks like an unreachable portal, so the type of the first error counts.
    """
    if not isinstance(with_token, PortalRefusedError) or with_token.message == first.message:
        return first
    message = f"{first.message} With the token instead: {with_token.message}"
    if isinstance(first, PortalRefusedError):
        return PortalRefusedError(message, http_status=first.http_status)
    return PortalUnreachableError(message)


def _send_once(connection: PortalConnection, request: RenewalRequest) -> IssuedCertificate:
    try:
        return connection.renew(request)
    finally:
        connection.close()


class CertificateManager:
    """Renews or monitors the client certificate in use.

    Args:
        config: names the admin's certificate, if there is one.
        identity: authenticates the agent; None without a portal.
        delivery: the connections that present the certificate.
        clock: the time.
    """

    def __init__(
        self, config: AgentConfig, identity: Identity | None, delivery: Delivery, *, clock: Clock
    ) -> None:
        self._clock = clock
        self._certificate: ConfiguredCertificate | AgentCertificate | None = None
        self._renewal: CertificateRenewal | None = None
        self._step: Callable[[], float] | None = None
        if config.client_certificate_file is not None:
            self._certificate = configured = ConfiguredCertificate(config.client_certificate_file)
            self._step = configured.step
        elif identity is not None:
            self._certificate = delivery.certificate
            self._renewal = _build_renewal(config, identity, delivery, clock=clock)
            self._step = self._renewal.step

    def tasks(self, stop: Event) -> list[PeriodicTask]:
        """Return the task, not started yet; none if there is no certificate."""
        return [PeriodicTask("certificate", self._step, stop=stop)] if self._step else []

    def metrics(self) -> Mapping[str, float | int | None]:
        """Return fields for measurement `agent`; None is left out."""
        certificate, remaining = self._certificate, None
        if certificate is not None:
            remaining = certificate.remaining_seconds(self._clock())
        failures = self._renewal.failures if self._renewal is not None else 0
        is_shown = self._renewal is not None and (failures > 0 or remaining is not None)
        return {
            "certificate_remaining_seconds": remaining,
            "certificate_renewal_failures": failures if is_shown else None,
        }


def _build_renewal(
    config: AgentConfig, identity: Identity, delivery: Delivery, *, clock: Clock
) -> CertificateRenewal:
    trusted = portal_authority_files(config.data_dir)
    token_only = TLSContexts(TLSFiles(config.ca_file, also_trusted=trusted))
    return CertificateRenewal(
        delivery.certificate,
        delivery.access_points,
        connect=lambda: connect_to_portal(config, identity, delivery, clock=clock),
        connect_with_token=lambda: PortalConnection(
            delivery.access_points,
            agent_token=identity.agent_token,
            timeout_seconds=config.request_timeout_seconds,
            tls=token_only,
            clock=clock,
        ),
        clock=clock,
    )
