"""Care for the certificate that the agent shows: one is shown, whichever it is.

What the appliance's admin configured goes before what the portal gave: it is for a server in front
of the portal that has an authority of its own. It is watched. The portal's own is renewed.
"""

from collections.abc import Mapping
from threading import Event

from collector.certificates.configured_certificate import ConfiguredCertificate
from collector.certificates.own_certificate import OwnCertificate
from collector.certificates.portal_authority import trusted_files
from collector.config import AgentConfig
from collector.configuring.tls_files import TLSFiles
from collector.identity import Identity
from collector.loops import Loop
from collector.renewal import Renewal
from collector.sending.delivery import Delivery, build_link
from collector.sending.link import PortalLink
from collector.sending.tls import TLSContexts
from core.clock import Clock

Figures = Mapping[str, float | int | None]


class CertificateCare:
    """Renews or watches the certificate in a loop, and tells how long it is good for.

    Args:
        config: names the admin's certificate, where there is one.
        identity: who this is to the portal; None where there is none.
        delivery: the connections that show the certificate.
        clock: the time.
    """

    def __init__(
        self, config: AgentConfig, identity: Identity | None, delivery: Delivery, *, clock: Clock
    ) -> None:
        self._clock = clock
        self._configured: ConfiguredCertificate | None = None
        self._own: OwnCertificate | None = None
        self._renewal: Renewal | None = None
        if config.client_certificate_file is not None:
            self._configured = ConfiguredCertificate(config.client_certificate_file)
        elif identity is not None:
            self._own = delivery.certificate
            self._renewal = _build_renewal(config, identity, delivery, clock=clock)

    def loops(self, stop: Event) -> list[Loop]:
        """Return the loop, not started yet; none where there is no certificate to care for."""
        step = None
        if self._configured is not None:
            step = self._configured.step
        elif self._renewal is not None:
            step = self._renewal.step
        return [Loop("certificate", step, stop=stop, at_end=lambda: None)] if step else []

    def figures(self) -> Figures:
        """Return what the agent tells of the certificate; None is left out."""
        holder = self._configured or self._own
        remaining = holder.remaining_seconds(self._clock()) if holder is not None else None
        failures = self._renewal.failures if self._renewal is not None else 0
        is_told = self._renewal is not None and (failures > 0 or remaining is not None)
        return {
            "certificate_remaining_seconds": remaining,
            "certificate_renewal_failures": failures if is_told else None,
        }


def _build_renewal(
    config: AgentConfig, identity: Identity, delivery: Delivery, *, clock: Clock
) -> Renewal:
    trusted = trusted_files(config.data_dir)
    bare = TLSContexts(TLSFiles(config.ca_file, also_trusted=trusted))
    return Renewal(
        delivery.certificate,
        delivery.addresses,
        open_link=lambda: build_link(config, identity, delivery, clock=clock),
        open_bare_link=lambda: PortalLink(
            delivery.addresses,
            agent_token=identity.agent_token,
            timeout_seconds=config.request_timeout_seconds,
            tls=bare,
            clock=clock,
        ),
        clock=clock,
    )
