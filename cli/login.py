"""`vedette login`: trade email, password and the second factor's code for an API token, once."""

import platform
from typing import Any

import click
import requests

from cli.client import Credentials, PortalError, call_portal, save_credentials

CODE_HEADER = "X-Vedette-OTP"
CODE_REQUIRED = "second_factor_required"
MAX_NAME_LENGTH = 100


@click.command()
@click.argument("url")
@click.option("--email", prompt=True, help="Your address at this portal.")
@click.option("--password", prompt=True, hide_input=True, help="Asked for when left out.")
@click.option("--code", help="Code of your authenticator app; asked for where you need one.")
def login(url: str, email: str, password: str, code: str | None) -> None:
    """Sign in to the portal at URL and keep an API token for the other commands."""
    url = url.rstrip("/")
    with requests.Session() as session:
        session.auth = (email, password)
        try:
            token = _new_token(session, url, code=code)
        except PortalError as error:
            if error.code != CODE_REQUIRED:
                raise
            code = click.prompt("Code of your authenticator app, or a recovery code")
            token = _new_token(session, url, code=code)
    path = save_credentials(Credentials(url=url, token=token["secret"]))
    click.echo(f"Signed in to {url} as {email}. The token is kept in {path}.")


def _token_name() -> str:
    return f"vedette on {platform.node() or 'an unnamed host'}"[:MAX_NAME_LENGTH]


def _new_token(session: requests.Session, url: str, *, code: str | None) -> Any:  # noqa: ANN401 - JSON
    headers = {CODE_HEADER: code} if code else {}
    # Signing in again takes the place of what this host had before.
    body = {"name": _token_name(), "is_replacing": True}
    return call_portal(session, "POST", f"{url}/api/v1/tokens", json=body, headers=headers)
