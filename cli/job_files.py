"""`vedette job apply`, `schema` and `export`: jobs in YAML files, and recordings of jobs.

name: train
image: acme/train:1
command: [python, train.py]
gpus: 2
memory_bytes: 16GiB
"""

import json
import os
import sys
from collections.abc import Mapping
from typing import Any, TextIO
from urllib.parse import urlencode

import click
import yaml

from cli.client import print_object
from cli.job_common import print_pending, secret
from core.errors import InvalidInputError
from vedette.client import Client

file_option = click.option(
    "-f", "--file", "file", type=click.File(), required=True, help="YAML file; - reads stdin."
)


@click.command()
@file_option
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Secret variable of every job, by default with its value in this shell; repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Only show where the jobs would go, and when.")
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table")
def apply(file: TextIO, *, secrets: tuple[str, ...], dry_run: bool, output: str) -> None:
    """Submit the jobs of a file, separated by ---. On any error none is submitted."""
    jobs = load_jobs(file)
    secret_values = dict(secret(text, os.environ) for text in secrets)
    if secret_values:
        jobs = [{**job, "secrets": {**(job.get("secrets") or {}), **secret_values}} for job in jobs]
    with Client() as client:
        applied = client.apply(jobs, is_dry_run=dry_run)
    if output != "table":
        print_object(applied, output)
        return
    for row in applied:
        if dry_run:
            click.secho(row["name"], bold=True)
            print_pending(row["placement"])
        else:
            click.echo(f"{row['job_id']} {row['name']}")


@click.command()
def schema() -> None:
    """Print the JSON Schema of a job file, for editors."""
    with Client() as client:
        click.echo(json.dumps(client.get("/job.schema.json"), indent=2))


@click.command("export")
@click.option("--since", help="RFC 3339, such as 2026-03-01T00:00:00Z. Defaults to 30 days ago.")
@click.option("--until", help="The same; exclusive. Defaults to now.")
@click.option("--anonymous", is_flag=True, help="Number the appliances instead of naming them.")
def export(since: str | None, until: str | None, *, anonymous: bool) -> None:
    """Print the jobs that were submitted in a period, as a recording of JSON lines.

    It has times, resources and limits, with numbers for users and projects, and no names of jobs,
    images or commands.

    \b
    vedette job export > jobs.jsonl
    """
    asked = {"since": since, "until": until, "anonymous": "true" if anonymous else None}
    query = urlencode({name: value for name, value in asked.items() if value})
    with Client() as client:
        content = client.download(f"/simulations/recording{'?' if query else ''}{query}")
    sys.stdout.buffer.write(content)


def load_jobs(file: TextIO) -> list[Mapping[str, Any]]:
    """Return the jobs of a file, which the portal checks."""
    name = getattr(file, "name", "<stdin>")
    try:
        documents = [document for document in yaml.safe_load_all(file) if document is not None]
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidInputError(f"{name} is not valid YAML: {error}") from None
    for number, document in enumerate(documents, start=1):
        if not isinstance(document, Mapping) or not all(isinstance(key, str) for key in document):
            raise InvalidInputError(
                f"{name}: job {number} is not a mapping. Expected 'name: ...' and 'image: ...'."
            )
    if not documents:
        raise InvalidInputError(f"{name} has no jobs. Expected 'name: ...' and 'image: ...'.")
    return documents
