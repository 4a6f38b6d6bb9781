"""Keeps the certificate fresh: asks for a new one in good time, and again until there is one."""

import logging
from collections.abc import Callable
from random import Random

from collector.certificates.own_certificate import OwnCertificate
from collector.errors import CertificateError, PortalRefusedError, PortalUnreachableError
from collector.sending.addresses import PortalAddresses
from collector.sending.link import PortalLink
from core.clock import Clock
from core.errors import VedetteError
from jobqueue.executors.wire import IssuedCertificate, RenewalRequest

log = logging.getLogger(__name__)

LOOK_SECONDS = 60.0
# A fleet that was enrolled together does not come back together.
JITTER_RATIO = 0.1
# This portal gives no certificates.
NOT_OFFERED = frozenset({404, 405})
NOT_OFFERED_WAIT_SECONDS = 3600.0


class Renewal:
    """Renews a certificate; a loop of the agent calls `step`.

    Args:
        certificate: what to renew; where there is none the first one is got.
        addresses: the portal's access points; certificates are for those with https alone.
        open_link: gives a connection that shows the present certificate.
        open_bare_link: gives one that shows none and sends the secret, for a certificate that ran
            out while the appliance was away.
        clock: the time.
        random: jitter.

    Attributes:
        failures: renewals that failed since the agent began.
    """

    def __init__(
        self,
        certificate: OwnCertificate,
        addresses: PortalAddresses,
        *,
        open_link: Callable[[], PortalLink],
        open_bare_link: Callable[[], PortalLink],
        clock: Clock,
        random: Random | None = None,
    ) -> None:
        self._certificate = certificate
        self._addresses = addresses
        self._open_link = open_link
        self._open_bare_link = open_bare_link
        self._clock = clock
        self._request: RenewalRequest | None = None
        self.failures = 0
        self._early_ratio = (random or Random()).random() * JITTER_RATIO  # noqa: S311 - no secret

    def step(self) -> float:
        """Renew the certificate when it is time; return the seconds until the next look.

        Raises:
            PortalUnreachableError: it is tried again, as after the next.
            PortalRefusedError: the portal gives none.
        """
        if not self._addresses.current.startswith("https:"):
            return LOOK_SECONDS
        remaining_seconds = self._certificate.seconds_until_renewal(
            self._clock(), early_ratio=self._early_ratio
        )
        if remaining_seconds:
            return min(remaining_seconds, LOOK_SECONDS)
        try:
            issued = self._renew()
        except (PortalUnreachableError, PortalRefusedError) as error:
            if isinstance(error, PortalRefusedError) and error.http_status in NOT_OFFERED:
                return NOT_OFFERED_WAIT_SECONDS
            self.failures += 1
            self._certificate.note_trouble(error.message, now=self._clock())
            raise
        log.info("the certificate was renewed, for %.0f s", issued.lifetime_seconds)
        return 0.0

    def _renew(self) -> IssuedCertificate:
        try:
            # One key for all tries: what was not answered may still have been signed.
            self._request = self._request or RenewalRequest(csr=self._certificate.request())
            issued = self._ask(self._request)
            self._certificate.take(issued, now=self._clock())
            self._request = None
        except CertificateError as error:
            self._request = None
            raise PortalUnreachableError(error.message) from error
        return issued

    def _ask(self, request: RenewalRequest) -> IssuedCertificate:
        try:
            return _ask_once(self._open_link(), request)
        except (PortalUnreachableError, PortalRefusedError) as error:
            if isinstance(error, PortalRefusedError) and error.http_status in NOT_OFFERED:
                raise
            try:
                return _ask_once(self._open_bare_link(), request)
            except (PortalUnreachableError, PortalRefusedError) as second:
                raise _both(error, second) from second


def _both(shown: VedetteError, bare: VedetteError) -> VedetteError:
    """Return what went wrong with the certificate, and what the portal said about the secret.

    A handshake that fails looks as if nobody were there, so the kind of the first one counts.
    """
    if not isinstance(bare, PortalRefusedError) or bare.message == shown.message:
        return shown
    message = f"{shown.message} With the secret in its place: {bare.message}"
    if isinstance(shown, PortalRefusedError):
        return PortalRefusedError(message, http_status=shown.http_status)
    return PortalUnreachableError(message)


def _ask_once(link: PortalLink, request: RenewalRequest) -> IssuedCertificate:
    try:
        return link.renew(request)
    finally:
        link.close()
