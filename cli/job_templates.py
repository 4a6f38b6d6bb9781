"""`vedette job template`: list, show, save and delete job templates."""

from collections.abc import Mapping
from typing import Any, TextIO
from urllib.parse import quote

import click

from cli.client import Columns, output_option, print_object, print_rows, save_named
from cli.job_files import file_option, load_jobs
from core.errors import InvalidInputError
from core.quantities import format_size
from vedette.client import Client


@click.group()
def template() -> None:
    """List, show, save and delete job templates."""


@template.command("ls")
@output_option
def list_templates(output: str) -> None:
    """List the templates of your tenant, and those that ship."""
    with Client() as client:
        templates = client.get("/job-templates")["items"]
    columns: Columns = {
        "NAME": "name",
        "IMAGE": lambda template: template["job"]["image"] or "-",
        "GPUS": lambda template: _gpus(template["job"]),
        "SAVED BY": lambda template: template["user_email"] or "-",
    }
    print_rows(templates, output, columns)


@template.command()
@click.argument("name")
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml")
def show(name: str, output: str) -> None:
    """Print the job of a template, as a file for `vedette job apply`."""
    with Client() as client:
        print_object(client.template(name)["job"], output)


@template.command()
@click.argument("name")
@file_option
@click.option("--description", default="", help="Shown in the list.")
def save(name: str, file: TextIO, description: str) -> None:
    """Save the job of a file as a template, or replace the one with this NAME."""
    jobs = load_jobs(file)
    if len(jobs) != 1:
        raise InvalidInputError(f"The file has {len(jobs)} jobs; a template has one.")
    body = {"name": name, "description": description, "job": jobs[0]}
    with Client() as client:
        templates = client.get("/job-templates")["items"]
        own = (template for template in templates if not template["is_shipped"])
        save_named(client, "/job-templates", body, own)
    click.echo(f"{name} saved")


@template.command("rm")
@click.argument("name")
def remove(name: str) -> None:
    """Delete a template of your tenant."""
    with Client() as client:
        client.delete(f"/job-templates/{quote(name, safe='')}")
    click.echo(f"{name} deleted")


def _gpus(job: Mapping[str, Any]) -> str:
    memory = job["gpu_memory_bytes"]
    part = job["gpu_slice"] or (f"{format_size(memory)} of one" if memory else "")
    return str(job["gpus"]) if job["gpus"] else part or ("part" if job["gpu_compute"] else "0")
