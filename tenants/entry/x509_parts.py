"""Parts that the authority's own certificate and those that it signs have in common."""

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a new key of the kind that we make."""
    return ec.generate_private_key(ec.SECP256R1())


def name_of(common_name: str, *, organisation: str = "Vedette") -> x509.Name:
    """Return a name of an organisation and what is called so in it."""
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def usage_of(*, is_authority: bool) -> x509.KeyUsage:
    """Return what a key may be used for: to sign certificates, or to prove who somebody is."""
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
