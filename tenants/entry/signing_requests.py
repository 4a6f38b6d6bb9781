"""Certificate signing requests: the proof that somebody holds a key, and nothing else.

The subject that a request names is not believed; an authority says it itself.
"""

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from core.errors import InvalidInputError

PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey

MAX_REQUEST_CHARACTERS = 16_384
CURVES = frozenset({"secp256r1", "secp384r1"})
RSA_BITS = range(2048, 4097)


def key_of_request(request_pem: str) -> PublicKey:
    """Return the public key of a request whose sender has proved to hold the private one.

    Raises:
        InvalidInputError: it is no request, its signature is wrong, or its key is of a kind or
            size that we don't sign.
    """
    if len(request_pem) > MAX_REQUEST_CHARACTERS:
        raise _wrong(f"it has {len(request_pem)} characters; {MAX_REQUEST_CHARACTERS} are plenty")
    try:
        request = x509.load_pem_x509_csr(request_pem.encode())
        key = request.public_key()
        is_signed = request.is_signature_valid
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm) as error:
        raise _wrong("it is no PKCS #10 request in PEM form") from error
    if not is_signed:
        raise _wrong("its signature is not of the key that it holds")
    return _checked(key)


def _checked(key: object) -> PublicKey:
    if isinstance(key, ec.EllipticCurvePublicKey):
        if key.curve.name in CURVES:
            return key
        raise _wrong(f"its key is on the curve {key.curve.name}; use P-256 or P-384")
    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size in RSA_BITS:
            return key
        raise _wrong(f"its RSA key has {key.key_size} bits; use 2048 to 4096")
    raise _wrong("its key is of another kind than EC and RSA")


def _wrong(fault: str) -> InvalidInputError:
    return InvalidInputError(
        f"The certificate request can't be signed: {fault}.", errors={"csr": [fault]}
    )
