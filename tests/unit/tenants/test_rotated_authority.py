"""The portal's own certificate comes from an authority that every agent knows."""

from datetime import datetime, timedelta

from cryptography import x509
from sqlalchemy.orm import Session

from tenants.models import Appliance
from tenants.pki.admission import admit_certificate
from tenants.pki.authority import rotate_authority, server_authority, signing_authority
from tenants.pki.certificates import Issuer, fingerprint_of, issue_certificate
from tests.cast import BOX, NOON, Cast, make_appliance
from tests.fixtures.signing_requests import signing_request

DAY = timedelta(days=1)
ISSUER = Issuer(BOX, 7 * DAY)


def renew(session: Session, appliance: Appliance, *, now: datetime) -> None:
    """Let an agent get a certificate and use it."""
    issued = issue_certificate(session, ISSUER, appliance, csr=signing_request(), now=now)
    certificate = x509.load_pem_x509_certificate(issued.certificate.encode())
    assert admit_certificate(session, fingerprint_of(certificate), now=now).appliance is not None


def test_an_agent_that_was_away_for_a_week_still_trusts_the_portal(
    session: Session, cast: Cast
) -> None:
    at_work, away = (make_appliance(session, cast.acme, name) for name in ("dgx-01", "dgx-02"))
    old = signing_authority(session, BOX, now=NOON)
    for appliance in (at_work, away):
        renew(session, appliance, now=NOON)
    new = rotate_authority(session, BOX, overlap=DAY, now=NOON + DAY)
    renew(session, at_work, now=NOON + 5 * DAY)
    assert server_authority(session, BOX, now=NOON + 8 * DAY) == (old, ["dgx-02"])
    renew(session, away, now=NOON + 8 * DAY)
    assert server_authority(session, BOX, now=NOON + 9 * DAY) == (new, [])


def test_a_retired_appliance_holds_nothing_up(session: Session, cast: Cast) -> None:
    appliance = make_appliance(session, cast.acme, "dgx-01")
    renew(session, appliance, now=NOON)
    new = rotate_authority(session, BOX, overlap=timedelta(), now=NOON + DAY)
    appliance.retired_at = NOON + DAY
    session.flush()
    assert server_authority(session, BOX, now=NOON + 2 * DAY) == (new, [])


def test_the_first_authority_needs_no_agents(session: Session) -> None:
    authority, lagging = server_authority(session, BOX, now=NOON)
    assert authority == signing_authority(session, BOX, now=NOON)
    assert lagging == []
