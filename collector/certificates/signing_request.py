"""A new key for this appliance and the request to sign it, made in a process of its own.

    python -m collector.certificates.signing_request KEY_FILE

writes the key, which never leaves the appliance, where only the agent's user can read it, and
prints the request. It is a process because what it takes to make a key would stay in the agent's
memory for days until the next one.
"""

import subprocess
import sys
from pathlib import Path

from collector.errors import CertificateError

TIME_LIMIT_SECONDS = 60


def request_for_new_key(key_file: Path) -> str:
    """Make a key in a file and return the certificate signing request for it, in PEM form.

    Raises:
        CertificateError: it could not be made; says why.
    """
    try:
        made = subprocess.run(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", "collector.certificates.signing_request", str(key_file)],
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CertificateError(f"No key could be made: {error}") from error
    if made.returncode:
        lines = made.stderr.strip().splitlines() or [f"it ended with {made.returncode}"]
        raise CertificateError(f"No key could be made in {key_file}: {lines[-1]}")
    return made.stdout


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
