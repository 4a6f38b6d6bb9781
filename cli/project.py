"""`vedette project`: projects of the tenant, their members and quotas."""

from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

import click

from cli.client import Columns, output_option, print_object, print_rows
from core.errors import InvalidInputError
from core.quantities import format_size, parse_size
from vedette.client import Client

_UNLIMITED = "none"
_LIMITS = ("guaranteed", "maximum", "lending_limit", "borrowing_limit")


@click.group()
def project() -> None:
    """List and manage projects, their members and quotas."""


@project.command("list")
@click.option("--archived", is_flag=True, help="List archived projects, too.")
@output_option
def list_projects(archived: bool, output: str) -> None:  # noqa: FBT001 - click's
    """List the projects of your tenant as a tree."""
    with Client() as client:
        items = client.get("/projects", is_archived=archived or None)["items"]
    if output == "table" and not items:
        click.echo("No projects yet. Projects share the appliances among teams. Create one with:")
        click.echo("  vedette project create NAME")
        return
    columns: Columns = {
        "NAME": lambda item: f"{'  ' * item['depth']}{item['name']}",
        "SHARES": "shares",
        "GPUS": lambda item: _figures(item["use"][0]),
        "RUNNING": "running_jobs",
        "WAITING": "waiting_jobs",
        "STATE": lambda item: "archived" if item["archived_at"] else "active",
    }
    print_rows(items, output, columns)


@project.command()
@click.argument("name")
@output_option
def show(name: str, output: str) -> None:
    """Show project NAME (or ID) with its members and quotas."""
    with Client() as client:
        item = client.get(_path(name))
        members = client.get(f"{_path(name)}/members")["items"]
    if output != "table":
        print_object({**item, "members": members}, output)
        return
    _show(item)
    click.echo("members:")
    for member in members:
        default = ", default project" if member["is_default"] else ""
        click.echo(f"  {member['email']}  {member['shares']} shares{default}")
    if not members:
        click.echo(f"  none; add one with: vedette project members {name} --add EMAIL")


@project.command()
@click.argument("name")
@click.option("--parent", default="", help="The project above it. Defaults to the tenant.")
@click.option("--description", default="", help="What it is for.")
@click.option("--shares", default=1, show_default=True, help="In relation to its siblings.")
@click.option("--budget-label", default="", help="By which reports group projects.")
def create(name: str, **fields: Any) -> None:  # noqa: ANN401 - those of the options
    """Create project NAME."""
    with Client() as client:
        created = client.post("/projects", {"name": name, **fields})
    click.echo(f"{created['id']} {created['name']}")


@project.command()
@click.argument("name")
@click.option("--name", "new_name", help="A new name.")
@click.option("--parent", help='The project above it; "" is the tenant.')
@click.option("--description", help="What it is for.")
@click.option("--shares", type=int, help="In relation to its siblings.")
@click.option("--budget-label", help="By which reports group projects.")
def update(name: str, new_name: str | None, **fields: Any) -> None:  # noqa: ANN401 - of the options
    """Change project NAME; only the options that you enter change."""
    changes = {
        key: value for key, value in {"name": new_name, **fields}.items() if value is not None
    }
    if not changes:
        raise InvalidInputError("Nothing to change. Enter an option, such as --shares 2.")
    with Client() as client:
        _show(client.patch(_path(name), changes))


@project.command()
@click.argument("name")
@click.option("--restore", is_flag=True, help="Take it back from the archive.")
def archive(name: str, restore: bool) -> None:  # noqa: FBT001 - click's
    """Archive project NAME: it accepts no jobs, and loses its quotas."""
    verb = "restore" if restore else "archive"
    with Client() as client:
        changed = client.post(f"{_path(name)}/{verb}")
    click.echo(f"{changed['name']} {verb}d")


@project.command()
@click.argument("name")
@click.option("--add", metavar="USER", help="Add this user, or change their membership.")
@click.option("--remove", metavar="USER", help="Remove this user.")
@click.option("--shares", default=1, show_default=True, help="Of the added user.")
@click.option("--default/--no-default", "is_default", default=None, help="Of jobs that name none.")
@output_option
def members(
    *,
    name: str,
    add: str | None,
    remove: str | None,
    shares: int,
    is_default: bool | None,
    output: str,
) -> None:
    """List the members of project NAME; add or remove one by email address."""
    path = _path(name)
    with Client() as client:
        if add:
            body = {"user": add, "shares": shares, "is_default": is_default}
            client.post(f"{path}/members", body)
        if remove:
            client.post(f"{path}/members/{quote(remove, safe='')}/remove")
        items = client.get(f"{path}/members")["items"]
    columns: Columns = {
        "EMAIL": "email",
        "SHARES": "shares",
        "DEFAULT": lambda item: "yes" if item["is_default"] else "-",
    }
    print_rows(items, output, columns, name="email")


@project.command()
@click.argument("name")
@click.option("--gpus", "resource", flag_value="gpus", default="gpus", help="Of GPUs (default).")
@click.option("--cpus", "resource", flag_value="cpus", help="Of CPU cores.")
@click.option("--memory", "resource", flag_value="memory_bytes", help="Of memory.")
@click.option("--model", default="", help="Only of GPUs whose model has this word, such as H100.")
@click.option("--guaranteed", help="What it always gets.")
@click.option("--maximum", help="The most that it gets, or none.")
@click.option("--lending-limit", help="How much of its idle guarantee others may use, or none.")
@click.option("--borrowing-limit", help="How much it may use above its guarantee, or none.")
@click.option("--remove", is_flag=True, help="Remove this quota.")
@output_option
def quota(
    *,
    name: str,
    resource: str,
    model: str,
    remove: bool,
    output: str,
    **limits: str | None,
) -> None:
    """Show the quotas of project NAME, or change the one of a resource."""
    path = _path(name)
    changes = {key: _amount(resource, text) for key, text in limits.items() if text is not None}
    with Client() as client:
        quotas = client.get(f"{path}/quotas")["quotas"]
        if changes or remove:
            same = {"resource": resource, "gpu_model": model}
            others = [row for row in quotas if {key: row[key] for key in same} != same]
            present = next((row for row in quotas if row not in others), same)
            wanted = others if remove else [*others, {**present, **changes}]
            quotas = client.put(f"{path}/quotas", {"quotas": wanted})["quotas"]
    if output == "table" and not quotas:
        click.echo("No quotas: the project uses what others leave idle.")
        return
    columns: Columns = {
        "RESOURCE": lambda row: " ".join(filter(None, (row["gpu_model"], row["resource"]))),
        **{key.upper().replace("_", " "): partial(_limit, key) for key in _LIMITS},
    }
    print_rows(quotas, output, columns)


def _limit(key: str, row: Mapping[str, Any]) -> str:
    return _shown(row["resource"], row[key])


def _amount(resource: str, text: str) -> int | None:
    """Return an amount; `none` is no limit.

    Raises:
        InvalidInputError: it is neither a number nor, of memory, a size.
    """
    if text == _UNLIMITED:
        return None
    try:
        return parse_size(text) if resource == "memory_bytes" else int(text)
    except ValueError as error:
        expected = "a size such as 512GiB" if resource == "memory_bytes" else "a whole number"
        raise InvalidInputError(f"{text!r} is not an amount; enter {expected}, or none.") from error


def _show(item: dict[str, Any]) -> None:
    facts = {
        "name": item["name"],
        "id": item["id"],
        "parent": item["parent"] or "the tenant",
        "shares": item["shares"],
        "budget label": item["budget_label"],
        "description": item["description"],
        "jobs": f"{item['running_jobs']} running, {item['waiting_jobs']} waiting",
    }
    for label, value in facts.items():
        if value:
            click.echo(f"{label}: {value}")
    for use in item["use"]:
        click.echo(f"{use['gpu_model']} {use['resource']}: {_figures(use)}".strip())


def _figures(use: dict[str, Any]) -> str:
    """Return what is used beside the quota."""
    kind = use["resource"]
    parts = [f"{_shown(kind, use['used'])} used"]
    if use["guaranteed"]:
        parts.append(f"{_shown(kind, use['guaranteed'])} guaranteed")
    if use["guaranteed"] and use["borrowed"]:
        parts.append(f"{_shown(kind, use['borrowed'])} borrowed")
    if use["maximum"] is not None:
        parts.append(f"at most {_shown(kind, use['maximum'])}")
    return ", ".join(parts)


def _shown(resource: str, amount: float | None) -> str:
    if amount is None:
        return "-"
    return format_size(int(amount)) if resource == "memory_bytes" else f"{amount:g}"


def _path(name: str) -> str:
    """Return the path of a project by its name or ID."""
    return f"/projects/{quote(name, safe='')}"
