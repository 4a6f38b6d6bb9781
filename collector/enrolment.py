"""Enrolment: a one-time token, given by the tenant's admin, becomes this appliance's identity."""

from collections.abc import Mapping
from pathlib import Path

from collector.certificates.own_certificate import OwnCertificate
from collector.errors import EnrolmentError, PortalRefusedError, PortalUnreachableError
from collector.identity import Identity, refuse_unwritable, save_identity
from collector.sending.addresses import PortalAddresses
from collector.sending.link import PortalLink
from collector.sending.tls import TLSContexts
from core.clock import Clock, utc_now
from jobqueue.executors.wire import EnrolRequest, Inventory

REFUSED_TOKEN = frozenset({401, 403, 404, 410})


def enroll(
    *,
    portal_url: str,
    token: str,
    name: str,
    inventory: Inventory,
    data_dir: Path,
    site: str = "",
    region: str = "",
    labels: Mapping[str, str] | None = None,
    tls: TLSContexts | None = None,
    clock: Clock = utc_now,
) -> Identity:
    """Enrol this appliance and keep its identity in `data_dir`.

    Where the portal is spoken to by TLS, a key is made here and the portal signs it; over plain
    HTTP nobody would ask for a certificate.

    Raises:
        EnrolmentError: the data folder can't be written, the portal can't be reached, or refuses
            the token.
        CertificateError: no key could be made, or the certificate can't be kept.
    """
    # Before the token is spent: its appliance would be there, and nobody could be it.
    refuse_unwritable(data_dir)
    certificate = OwnCertificate(data_dir)
    request = EnrolRequest(
        token=token,
        name=name,
        inventory=inventory,
        site=site,
        region=region,
        labels=dict(labels or {}),
        csr=certificate.request() if portal_url.startswith("https:") else "",
    )
    link = PortalLink(PortalAddresses([portal_url]), tls=tls)
    try:
        reply = link.enroll(request)
    except PortalUnreachableError as error:
        raise EnrolmentError(
            f"{portal_url} can't be reached: {error.message} Check the address and the network."
        ) from error
    except PortalRefusedError as error:
        raise EnrolmentError(_refusal(error)) from error
    finally:
        link.close()
    identity = Identity(
        appliance_id=reply.appliance_id, tenant_id=reply.tenant_id, agent_token=reply.agent_token
    )
    save_identity(data_dir, identity)
    if reply.certificate is None:
        certificate.remove()
    else:
        certificate.take(reply.certificate, now=clock())
    return identity


def _refusal(error: PortalRefusedError) -> str:
    if error.http_status in REFUSED_TOKEN:
        return (
            f"The portal does not take this token: {error.message} A token can be used once, and "
            "for a limited time. Ask for a new one on the portal's appliances page."
        )
    return f"The portal refused to enrol this appliance: {error.message}"
