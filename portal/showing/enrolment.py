"""The commands that bring a host into the portal, as pages and API show them."""

from importlib.metadata import version

from core.told_authority import told_authority
from portal.context import portal


def enrol_command(secret: str, *, again: bool = False) -> str:
    """Return the command that joins a host to this portal, or gives one a new identity.

    It names the authority of the portal's own certificate where no system knows it.
    """
    settings = portal().settings
    command = f"vedette agent enroll {settings.resolved_public_url} {secret}"
    told = told_authority(settings)
    if told is not None:
        command = f"{command} --ca-sha256 {told.sha256}"
    return f"{command} --again" if again else command


def install_command() -> str:
    """Return the command that installs the agent from the package that `make wheel` builds."""
    return f"pip install vedette-{version('vedette')}-py3-none-any.whl"
