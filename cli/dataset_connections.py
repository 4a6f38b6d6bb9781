"""`vedette dataset connection`: credentials for the sources of datasets."""

import os

import click

from cli.client import Columns, all_items, fetch_items, one_named, output_option, print_rows
from vedette.client import Client

PATH = "/data-connections"


@click.group()
def connection() -> None:
    """Manage credentials for buckets and other sources of datasets."""


@connection.command()
@click.argument("name")
@click.argument("url")
@click.option("--endpoint-url", default="", help="Of a server with S3's API, or an IPFS gateway.")
@click.option("--region", default="", help="Of the bucket.")
@click.option("--access-key-id", default="", help="Its secret is AWS_SECRET_ACCESS_KEY, or asked.")
@click.option("--bearer-token", is_flag=True, help="Ask for a token, for HTTPS and gateways.")
def add(*, bearer_token: bool, **fields: str) -> None:
    """Add connection NAME for sources that begin with URL, and print its ID.

    Secrets are never options: other users of a host see those.

    \b
    vedette dataset connection add minio s3://acme-data --endpoint-url https://minio.acme.example \\
        --access-key-id vedette
    """
    body = dict(fields)
    if body["access_key_id"]:
        secret = os.environ.get("AWS_SECRET_ACCESS_KEY") or _asked("Secret access key")
        body["secret_access_key"] = secret
        body["session_token"] = os.environ.get("AWS_SESSION_TOKEN", "")
    if bearer_token:
        body["bearer_token"] = _asked("Token")
    with Client() as client:
        click.echo(client.post(PATH, body)["id"])


@connection.command("list")
@output_option
def list_connections(output: str) -> None:
    """List the connections; secrets are never shown."""
    columns: Columns = {
        "NAME": "name",
        "URL": "url",
        "ENDPOINT": lambda row: row["endpoint_url"] or "-",
        "ACCESS KEY": lambda row: row["access_key_id"] or "-",
    }
    print_rows(fetch_items(PATH), output, columns, empty="No data connections.")


@connection.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def delete(names: tuple[str, ...]) -> None:
    """Delete connections that no dataset uses."""
    with Client() as client:
        rows = list(all_items(client, PATH))
        command = "vedette dataset connection list"
        for name in names:
            row = one_named(rows, name, noun="data connection", command=command)
            client.delete(f"{PATH}/{row['id']}")
            click.echo(f"{row['name']} deleted")


def _asked(label: str) -> str:
    return str(click.prompt(label, hide_input=True, err=True))
