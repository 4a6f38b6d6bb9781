"""Runs a module of this folder in a process of its own.

What it takes to make or read a certificate would stay in the agent's memory.
"""

import subprocess
import sys
from pathlib import Path

from collector.errors import CertificateError

TIME_LIMIT_SECONDS = 60


def run_apart(module: str, path: Path, *, failed: str) -> str:
    """Return what a module prints that is given one file.

    Args:
        module: the name of a module that can be run.
        path: the file that it is about.
        failed: how the sentence of an error begins.

    Raises:
        CertificateError: it could not be run, or failed; says why.
    """
    try:
        ended = subprocess.run(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", module, str(path)],
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CertificateError(f"{failed}: {error}") from error
    if ended.returncode:
        lines = ended.stderr.strip().splitlines() or [f"it ended with {ended.returncode}"]
        raise CertificateError(f"{failed}: {lines[-1]}")
    return ended.stdout
