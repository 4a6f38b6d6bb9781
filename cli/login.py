"""`vedette login`: trade email and password for an API token, once."""

import platform

import click
import requests

from cli.client import Credentials, call_portal, save_credentials


@click.command()
@click.argument("url")
@click.option("--email", prompt=True, help="Your address at this portal.")
@click.option("--password", prompt=True, hide_input=True, help="Asked for when left out.")
def login(url: str, email: str, password: str) -> None:
    """Sign in to the portal at URL and keep an API token for the other commands."""
    url = url.rstrip("/")
    with requests.Session() as session:
        session.auth = (email, password)
        token = call_portal(
            session, "POST", f"{url}/api/v1/tokens", json={"name": f"vedette on {platform.node()}"}
        )
    path = save_credentials(Credentials(url=url, token=token["secret"]))
    click.echo(f"Signed in to {url} as {email}. The token is kept in {path}.")
