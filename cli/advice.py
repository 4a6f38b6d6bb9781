"""`vedette advice`: what a fleet has idle and is short of, and what to do about it."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import click

from cli.client import Columns, all_items, fetch_items, output_option, print_rows
from core.errors import NotFoundError, VedetteError
from core.quantities import format_duration
from vedette.client import Client

_PATH = "/fleet-advice"
_UNFINISHED = ("waiting", "running")
_POLL_SECONDS = 2.0


@click.group(invoke_without_command=True)
@click.pass_context
def advice(context: click.Context) -> None:
    """Show what your GPUs have idle and are short of; compute it, and dismiss advice.

    Without a command, advice is listed.
    """
    if context.invoked_subcommand is None:
        context.invoke(list_advice)


@advice.command("ls")
@click.option("--evidence", is_flag=True, help="Print the reasons and what to do, too.")
@output_option
def list_advice(output: str = "table", *, evidence: bool = False) -> None:
    """List advice, the largest first; GPU-hours are those of the period."""
    with Client() as client:
        report = client.get(_PATH)
    rows = report["advice"]
    columns: Columns = {
        "KEY": "key",
        "GPU-HOURS": lambda row: f"{row['gpu_hours']:,.1f}",
        "A MONTH": lambda row: _amount(row, report["currency"]),
        "ACTION": "action",
        "TITLE": "title",
    }
    print_rows(rows, output, columns, empty=_why_none(report), name="key")
    if evidence and output == "table":
        for row in rows:
            click.echo(f"\n{row['title']}")
            for sentence in (*row["evidence"], row["action_text"]):
                click.echo(f"  {sentence}")


@advice.command()
@output_option
def models(output: str) -> None:
    """List GPU models with their GPU-hours in the period, waits and prices."""
    with Client() as client:
        report = client.get(_PATH)
    columns: Columns = {
        "MODEL": "gpu_model",
        "GPUS": "gpus",
        **_gpu_hours("capacity", "allocated", "idle", "free", "rented", "waiting", "short"),
        "WAIT P50": lambda row: _wait(row["wait_seconds_p50"]),
        "WAIT P95": lambda row: _wait(row["wait_seconds_p95"]),
        "OWN PRICE": lambda row: row["own_price"] or "-",
        "TO RENT": lambda row: row["rent_price"] or "-",
    }
    print_rows(report["models"], output, columns, empty=_why_none(report), name="gpu_model")


@advice.command()
@output_option
def additions(output: str) -> None:
    """Show what one more appliance of each model would have changed in waiting."""
    with Client() as client:
        report = client.get(_PATH)
    rows = report["additions"]
    if report["problem"]:
        click.echo(report["problem"], err=True)
    if output != "table":
        print_rows(rows, output, {})
        return
    if not rows:
        click.echo("No job waited for a model that an appliance has.", err=True)
        return
    cases = {"as today": rows[0]["today"]}
    cases |= {f"one more {row['appliance']}": row["changed"] for row in rows}
    columns: Columns = {
        "APPLIANCES": "name",
        "WAIT P50": lambda case: _wait(case["wait_seconds_p50"]),
        "WAIT P95": lambda case: _wait(case["wait_seconds_p95"]),
        "WAITED GPU-HOURS": lambda case: f"{case['waiting_gpu_hours']:,.1f}",
    }
    print_rows([{**case, "name": name} for name, case in cases.items()], output, columns)


@advice.command()
@output_option
def appliances(output: str) -> None:
    """List appliances, those with the most free GPU-hours first."""
    columns: Columns = {
        "APPLIANCE": "name",
        "MODEL": "gpu_model",
        "GPUS": "gpus",
        **_gpu_hours("capacity", "allocated", "idle"),
        "LAST USED": lambda row: row["last_used_at"] or "-",
    }
    print_rows(fetch_items(f"{_PATH}/appliances"), output, columns)


@advice.command()
@click.option("--wait/--no-wait", default=True, help="Wait for the end; on by default.")
def compute(*, wait: bool) -> None:
    """Compute the figures now; they are computed every night otherwise."""
    with Client() as client:
        report = client.post(f"{_PATH}/compute")
        while wait and report["state"] in _UNFINISHED:
            time.sleep(_POLL_SECONDS)
            report = client.get(_PATH)
    if report["state"] not in (*_UNFINISHED, "succeeded"):
        raise VedetteError(report["message"])
    click.echo(
        "The figures are computed."
        if report["state"] == "succeeded"
        else "The figures are computed in the background."
    )


@advice.command()
@click.argument("key")
def dismiss(key: str) -> None:
    """Don't show advice for 30 days; KEY is that of the list."""
    with Client() as client:
        dismissal = client.post(f"{_PATH}/dismissals", {"key": key})
    click.echo(f"Dismissed {key} until {dismissal['dismissed_until']}.")


@advice.command()
@click.argument("key")
def restore(key: str) -> None:
    """Show dismissed advice again."""
    with Client() as client:
        listed = all_items(client, f"{_PATH}/dismissals")
        ident = next((row["id"] for row in listed if row["key"] == key), None)
        if ident is None:
            raise NotFoundError.of("dismissed advice", key)
        client.delete(f"{_PATH}/dismissals/{ident}")
    click.echo(f"{key} is shown again.")


@advice.command("tenants")
@output_option
def list_tenants(output: str) -> None:
    """List the sums of all tenants (operators only)."""
    columns: Columns = {
        "TENANT": "tenant_name",
        "GPUS": "gpus",
        **_gpu_hours("capacity", "allocated", "idle", "short"),
        "COMPUTED": lambda row: row["computed_at"] or "-",
    }
    print_rows(fetch_items(f"{_PATH}/tenants"), output, columns, name="tenant_name")


def _gpu_hours(*names: str) -> dict[str, Callable[[Mapping[str, Any]], str]]:
    """Return columns of GPU-hours; `idle` is of `idle_gpu_hours`."""
    return {name.upper(): partial(_hours, f"{name}_gpu_hours") for name in names}


def _hours(field: str, row: Mapping[str, Any]) -> str:
    return f"{row[field]:,.1f}"


def _why_none(report: Mapping[str, Any]) -> str:
    if report["computed_at"] is None:
        return "No figures are computed yet. Compute them with: vedette advice compute"
    return report["too_little"] or "There is nothing to advise."


def _amount(row: Mapping[str, Any], currency: str) -> str:
    if row["amount"] is None:
        return "-"
    return f"{currency} {row['amount']} {row['amount_kind']}"


def _wait(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(seconds)
