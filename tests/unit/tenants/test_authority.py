"""The portal's own authority: what it signs, what it never signs, and how it is rotated."""

from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.errors import InvalidInputError
from tenants.models import Appliance, ApplianceCertificate, CertificateAuthority
from tenants.pki.authority import (
    CLOCK_MARGIN,
    authorities_pem,
    rotate_authority,
    signing_authority,
    trusted_authorities,
)
from tenants.pki.certificates import fingerprint_of
from tenants.pki.signing import Subject, key_of_request, revocation_lists_pem, sign, sign_server
from tests.cast import BOX, NOON, Cast, make_appliance
from tests.fixtures.signing_requests import Key, signing_request

WEEK = timedelta(days=7)
WEAK_BITS = 1024
SUBJECT = Subject(tenant_id="acme", appliance_id="dgx-01")


def signed(session: Session, request: str) -> x509.Certificate:
    authority = signing_authority(session, BOX, now=NOON)
    return sign(authority, BOX, key_of_request(request), SUBJECT, lifetime=WEEK, now=NOON)


def test_the_first_authority_is_created_on_demand_with_an_encrypted_key(session: Session) -> None:
    made = signing_authority(session, BOX, now=NOON)
    assert signing_authority(session, BOX, now=NOON).id == made.id
    assert session.scalar(select(func.count()).select_from(CertificateAuthority)) == 1
    assert "PRIVATE" not in made.private_key
    assert "PRIVATE KEY" in BOX.decrypt(made.private_key)


def test_the_portal_sets_the_subject_and_ignores_that_of_the_request(session: Session) -> None:
    certificate = signed(session, signing_request(subject="another appliance"))
    names = {attribute.oid: attribute.value for attribute in certificate.subject}
    assert names == {NameOID.ORGANIZATION_NAME: "acme", NameOID.COMMON_NAME: "dgx-01"}
    alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    uris = alternatives.value.get_values_for_type(x509.UniformResourceIdentifier)
    assert uris == ["vedette://tenant/acme/appliance/dgx-01"]
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage)
    assert list(usage.value) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def test_a_certificate_is_good_for_its_lifetime_and_for_clocks_that_are_behind(
    session: Session,
) -> None:
    certificate = signed(session, signing_request())
    assert certificate.not_valid_before_utc == NOON - CLOCK_MARGIN
    assert certificate.not_valid_after_utc == NOON + WEEK


def test_a_certificate_passes_a_strict_verification(session: Session) -> None:
    certificate = signed(session, signing_request())
    roots = x509.load_pem_x509_certificates(authorities_pem(session, now=NOON).encode())
    verifier = PolicyBuilder().store(Store(roots)).time(NOON).build_client_verifier()
    assert verifier.verify(certificate, []).chain[0] == certificate


@pytest.mark.parametrize(
    ("key", "fault"),
    [
        (ec.generate_private_key(ec.SECP256K1()), "curve secp256k1"),
        (ed25519.Ed25519PrivateKey.generate(), "neither EC nor RSA"),
        (rsa.generate_private_key(65537, WEAK_BITS), "1024 bits"),
    ],
    ids=["curve", "kind", "size"],
)
def test_a_weak_or_odd_key_is_not_signed(key: Key, fault: str) -> None:
    with pytest.raises(InvalidInputError, match=fault):
        key_of_request(signing_request(key))


def test_a_request_that_another_user_signed_is_refused() -> None:
    request = x509.load_pem_x509_csr(signing_request().encode())
    der = request.public_bytes(serialization.Encoding.DER)
    bent = der[:-1] + bytes([der[-1] ^ 1])
    pem = x509.load_der_x509_csr(bent).public_bytes(serialization.Encoding.PEM)
    with pytest.raises(InvalidInputError, match="signature"):
        key_of_request(pem.decode())


@pytest.mark.parametrize("text", ["", "hello", "x" * 20_000])
def test_what_is_no_request_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="can't be signed"):
        key_of_request(text)


def test_after_a_rotation_the_old_one_signs_until_the_overlap_is_over(session: Session) -> None:
    old = signing_authority(session, BOX, now=NOON)
    new = rotate_authority(session, BOX, overlap=timedelta(hours=24), now=NOON)
    assert signing_authority(session, BOX, now=NOON + timedelta(hours=23)).id == old.id
    assert signing_authority(session, BOX, now=NOON + timedelta(hours=24)).id == new.id
    later = NOON + timedelta(days=30)
    assert {authority.id for authority in trusted_authorities(session, now=later)} == {
        old.id,
        new.id,
    }
    assert authorities_pem(session, now=NOON).count("BEGIN CERTIFICATE") == 2


def test_an_expired_authority_is_not_trusted(session: Session) -> None:
    old = signing_authority(session, BOX, now=NOON)
    later = old.not_after
    assert trusted_authorities(session, now=later) == []
    assert signing_authority(session, BOX, now=later).id != old.id


def test_the_revocation_list_names_what_was_revoked(session: Session, cast: Cast) -> None:
    appliance = make_appliance(session, cast.acme, "dgx-01")
    certificate = signed(session, signing_request())
    row = _row(session, appliance, certificate)
    row.revoked_at = NOON
    session.flush()
    listed = x509.load_pem_x509_crl(revocation_lists_pem(session, BOX, now=NOON).encode())
    assert [revoked.serial_number for revoked in listed] == [certificate.serial_number]
    [own] = x509.load_pem_x509_certificates(authorities_pem(session, now=NOON).encode())
    key = own.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert listed.is_signature_valid(key)


def _row(
    session: Session, appliance: Appliance, certificate: x509.Certificate
) -> ApplianceCertificate:
    row = ApplianceCertificate(
        tenant_id=appliance.tenant_id,
        appliance_id=appliance.id,
        authority_id=signing_authority(session, BOX, now=NOON).id,
        serial=f"{certificate.serial_number:x}",
        fingerprint=fingerprint_of(certificate),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        issued_at=NOON,
    )
    session.add(row)
    return row


def test_certificates_of_the_portal_and_of_agents_do_not_replace_each_other(
    session: Session,
) -> None:
    authority = signing_authority(session, BOX, now=NOON)
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    server = sign_server(authority, BOX, key, ["portal.lan"], lifetime=WEEK, now=NOON)
    agent = signed(session, signing_request())
    roots = x509.load_pem_x509_certificates(authority.certificate.encode())
    policy = PolicyBuilder().store(Store(roots)).time(NOON)
    with pytest.raises(VerificationError):
        policy.build_client_verifier().verify(server, [])
    with pytest.raises(VerificationError):
        policy.build_server_verifier(x509.DNSName("dgx-01")).verify(agent, [])
