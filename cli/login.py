"""`vedette login`, `whoami` and `logout`: the API token of this user on this host."""

import platform
from typing import Any

import click
import requests

from core.errors import VedetteError
from vedette.client import Client
from vedette.connection import call_portal
from vedette.credentials import (
    Credentials,
    credentials_path,
    load_credentials,
    save_credentials,
    saved_credentials,
)
from vedette.errors import PortalError

CODE_HEADER = "X-Vedette-OTP"
CODE_REQUIRED = "second_factor_required"
MAX_NAME_LENGTH = 100


@click.command()
@click.argument("url")
@click.option("--email", prompt=True, help="Your email address.")
@click.option("--password", prompt=True, hide_input=True, help="Prompts if omitted.")
@click.option("--code", help="Code of your authenticator app. Prompts if required.")
def login(url: str, email: str, password: str, code: str | None) -> None:
    """Sign in to the portal at URL and store an API token for other commands."""
    url = url.rstrip("/")
    with requests.Session() as session:
        session.auth = (email, password)
        try:
            token = _new_token(session, url, code=code)
        except PortalError as error:
            if error.code != CODE_REQUIRED:
                raise
            code = click.prompt("Code from your authenticator app, or a recovery code")
            token = _new_token(session, url, code=code)
    path = save_credentials(Credentials(url, token["secret"], token_id=token["id"]))
    click.echo(f"Signed in to {url} as {email}. Token saved to {path}.")


@click.command()
def whoami() -> None:
    """Show which user, role and portal commands are run with."""
    with Client() as client:
        user = client.get("/me")
    click.echo(f"{user['email']} ({user['role']}) at {load_credentials().url}")


@click.command()
def logout() -> None:
    """Revoke the API token of `vedette login` on this host, and delete it."""
    saved = saved_credentials()
    if saved is None:
        click.echo("You are not signed in.")
        return
    try:
        with Client(saved.url, saved.token) as client:
            if saved.token_id:
                client.delete(f"/tokens/{saved.token_id}")
    except VedetteError as error:
        click.echo(f"The token was not revoked: {error.message} Do so in the settings.", err=True)
    credentials_path().unlink()
    click.echo(f"Signed out of {saved.url}.")


def _new_token(session: requests.Session, url: str, *, code: str | None) -> Any:  # noqa: ANN401 - JSON
    headers = {CODE_HEADER: code} if code else {}
    name = f"vedette on {platform.node() or 'an unnamed host'}"[:MAX_NAME_LENGTH]
    # Signing in again replaces the token that this host had before.
    body = {"name": name, "is_replacing": True}
    return call_portal(session, "POST", f"{url}/api/v1/tokens", json=body, headers=headers)
