"""The script that turns a host into an appliance, as this portal serves it.

It depends on the settings and the wheelhouse alone, so its SHA-256 on the page that shows the
command covers all that the command installs.
"""

from hashlib import sha256
from importlib.metadata import version
from shlex import quote

from flask import render_template

from core.advertised_ca import advertised_ca
from portal.context import portal
from portal.installer.wheelhouse import BUILD_COMMAND, read_wheelhouse

SCRIPT_PATH = "/install"
_DOWNLOADED_NAME = "vedette-install"


def install_script() -> str:
    """Return the script; without a wheelhouse, one that says what the operator has to do."""
    settings = portal().settings
    contents = read_wheelhouse(settings)
    if contents is None:
        text = render_template("installer/unavailable.sh", command=BUILD_COMMAND)
        return f"{text}\n"
    authority = advertised_ca(settings)
    values = {
        "portal_url": settings.resolved_public_url,
        "version": contents.version,
        "pythons": " ".join(contents.pythons),
        "machines": " ".join(contents.machines),
        "requirements_sha256": contents.requirements_sha256,
        "ca_sha256": authority.sha256 if authority else "",
        "ca_pem": authority.pem.strip() if authority else "",
    }
    quoted = {name: quote(text) for name, text in values.items()}
    return f"{render_template('installer/install.sh', **quoted)}\n"


def script_sha256() -> str:
    """Return the SHA-256 of the script."""
    return sha256(install_script().encode()).hexdigest()


def install_command(secret: str, *, is_repeated: bool = False) -> str:
    """Return the line that installs the agent on a host and enrolls it.

    If the portal's CA is private, curl can't verify its certificate: the line compares the
    script's SHA-256 instead, and the script contains the CA for all that it downloads.
    """
    settings = portal().settings
    address = f"{settings.resolved_public_url}{SCRIPT_PATH}"
    arguments = f"{secret} --again" if is_repeated else secret
    if advertised_ca(settings) is None:
        return f"curl -fsS {address} | sudo sh -s -- {arguments}"
    return (
        f"curl -fsSko {_DOWNLOADED_NAME} {address} && "
        f'echo "{script_sha256()}  {_DOWNLOADED_NAME}" | sha256sum --check --quiet && '
        f"sudo sh {_DOWNLOADED_NAME} {arguments}"
    )


def wheelhouse_problem() -> str:
    """Return why agents can't be installed from here, or only old ones; empty if they can."""
    contents, own_version = read_wheelhouse(portal().settings), version("vedette")
    if contents is None:
        return "This portal has no packages for appliances yet."
    if contents.version != own_version:
        return f"This portal is Vedette {own_version}, but has packages of {contents.version}."
    return ""
