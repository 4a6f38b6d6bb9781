"""`vedette budget`: what the tenant, a project or a user may spend in a month."""

from collections.abc import Mapping
from typing import Any

import click

from cli.client import Columns, all_items, fetch_items, output_option, print_object, print_rows
from cli.job_common import DURATION
from cli.local_time import local_minutes
from core.errors import NotFoundError
from core.quantities import format_duration
from vedette.client import Client

_ACTIONS = ("notify", "stop_new_jobs", "stop_jobs")
_PATH = "/billing/budgets"
_SPENT_PERCENT = 100
for_project = click.option("--project", help="Of a project, with those below it; name or ID.")
for_user = click.option("--user", help="Of a user; email address or ID.")


@click.group()
def budget() -> None:
    """List and set budgets: of the tenant, of projects and of users."""


@budget.command("ls")
@output_option
def list_budgets(output: str) -> None:
    """List budgets with what is spent of them this month."""
    columns: Columns = {
        "FOR": "target",
        "NAME": "target_name",
        "AMOUNT": "amount",
        "SPENT": "spent",
        "PERCENT": lambda row: f"{row['percent']:.0f}",
        "EXPECTED": "forecast",
        "ACTION": _action,
    }
    empty = "No budgets. Set the tenant's with: vedette budget set AMOUNT"
    print_rows(fetch_items(_PATH), output, columns, empty=empty)


@budget.command("set")
@click.argument("amount")
@for_project
@for_user
@click.option("--action", type=click.Choice(_ACTIONS), help="When it is spent; notify by default.")
@click.option("--grace", type=DURATION, help="Until running jobs stop, with stop_jobs.")
@click.option("--notify", multiple=True, help="`email` (default) or a receiver. Repeatable.")
@output_option
def set_budget(amount: str, *, project: str | None, user: str | None, **options: Any) -> None:  # noqa: ANN401 - click's
    """Set the budget of the tenant, a project or a user to AMOUNT a month.

    Options that are left out stay as they are.

    \b
    vedette budget set 1000 --project vision --action stop_jobs --grace 2h
    """
    output = options.pop("output")
    changes: dict[str, Any] = {"amount": amount}
    if options["action"]:
        changes["action"] = options["action"]
    if options["grace"] is not None:
        changes["grace_seconds"] = options["grace"]
    if options["notify"]:
        changes["notify"] = list(options["notify"])
    target, name = _target(project, user)
    with Client() as client:
        present = _find(client, target, name)
        if present is not None:
            saved = client.patch(f"{_PATH}/{present['id']}", changes)
        else:
            saved = client.post(_PATH, {"target": target, "target_id": name, **changes})
    if output != "table":
        print_object(saved, output)
        return
    click.echo(f"The {target} {saved['target_name']} may spend {saved['amount']} a month.")


@budget.command("rm")
@for_project
@for_user
def remove(project: str | None, user: str | None) -> None:
    """Delete the budget of the tenant, a project or a user."""
    target, name = _target(project, user)
    with Client() as client:
        present = _find(client, target, name)
        if present is None:
            raise NotFoundError(f"The {target} {name} has no budget.".replace("  ", " "))
        client.delete(f"{_PATH}/{present['id']}")
    click.echo(f"Budget of the {target} {present['target_name']} deleted")


def _target(project: str | None, user: str | None) -> tuple[str, str]:
    if project is not None and user is not None:
        raise click.UsageError("Choose one of --project and --user.")
    if project is not None:
        return "project", project
    return ("tenant", "") if user is None else ("user", user.lower())


def _find(client: Client, target: str, name: str) -> dict[str, Any] | None:
    """Return the budget of a target by its name or id."""
    budgets = (row for row in all_items(client, _PATH) if row["target"] == target)
    return next((row for row in budgets if name in {row["target_id"], row["target_name"]}), None)


def _action(row: Mapping[str, Any]) -> str:
    text: str = row["action"]
    if text == "stop_jobs":
        text = f"{text} after {format_duration(row['grace_seconds'])}"
    if row["reached_at"] and row["percent"] >= _SPENT_PERCENT:
        text = f"{text}, spent {local_minutes(row['reached_at'])}"
    return text
