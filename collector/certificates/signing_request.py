"""A new key for this appliance and the request to sign it, made in a process of its own.

    python -m collector.certificates.signing_request KEY_FILE

writes the key, which never leaves the appliance, where only the agent's user can read it, and
prints the request.
"""

import sys
from pathlib import Path

from collector.certificates.apart import run_apart


def request_for_new_key(key_file: Path) -> str:
    """Make a key in a file and return the certificate signing request for it, in PEM form.

    Raises:
        CertificateError: it could not be made; says why.
    """
    return run_apart(
        "collector.certificates.signing_request",
        key_file,
        failed=f"No key could be made in {key_file}",
    )


def main(key_file: Path) -> str:
    """Make a key on the curve P-256 in a file and return the request for it."""
    from cryptography import x509  # noqa: PLC0415 - not in the process that asks for a request
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    from collector.files import replace_file  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    replace_file(key_file, pem, mode=0o600)
    # The subject is the portal's to say.
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    signed = request.sign(key, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM).decode()


if __name__ == "__main__":
    sys.stdout.write(main(Path(sys.argv[1])))
