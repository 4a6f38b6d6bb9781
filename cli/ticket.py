"""`vedette ticket`: requests for support."""

import base64
from pathlib import Path
from typing import Any, BinaryIO

import click

from cli.client import Columns, fetch_items, output_option, print_object, print_rows
from cli.local_time import local_minutes
from core.quantities import format_duration
from vedette.client import Client

_PATH = "/tickets"
_KINDS = ("job", "appliance", "invoice", "contract", "offer")
files_option = click.option(
    "--file", "files", type=click.File("rb"), multiple=True, help="Attach a file. Repeatable."
)


@click.group()
def ticket() -> None:
    """Ask providers and the operator for support, and answer."""


@ticket.command("ls")
@click.option("--all", "is_all", is_flag=True, help="Also solved and closed ones.")
@click.option("--waiting", is_flag=True, help="Only those that wait for your side.")
@output_option
def list_tickets(*, is_all: bool, waiting: bool, output: str) -> None:
    """List tickets, those that are due first."""
    query = {"is_active": None if is_all else "true", "needs_answer": "true" if waiting else None}
    columns: Columns = {
        "ID": "id",
        "TITLE": "title",
        "STATE": "state",
        "ABOUT": lambda row: f"{row['subject_kind']} {row['subject_name']}".strip(),
        "DUE": lambda row: "late" if row["is_late"] else local_minutes(row["due_at"]),
        "UPDATED": lambda row: local_minutes(row["updated_at"]),
    }
    empty = "No tickets. Open one with: vedette ticket open TITLE --text TEXT"
    print_rows(fetch_items(_PATH, **query), output, columns, empty=empty, name="id")


@ticket.command("show")
@click.argument("ticket_id")
@output_option
def show(ticket_id: str, output: str) -> None:
    """Show a ticket with its thread."""
    with Client() as client:
        shown = client.get(f"{_PATH}/{ticket_id}")
        entries = client.get(f"{_PATH}/{ticket_id}/entries")["items"]
    if output != "table":
        print_object({**shown, "entries": entries}, output)
        return
    click.echo(f"{shown['title']} ({shown['state'].replace('_', ' ')})")
    if shown["limit_seconds"]:
        click.echo(f"Answer within {format_duration(shown['limit_seconds'])}: {_clock(shown)}")
    for entry in entries:
        who = entry["author_name"] or "the portal"
        kind = "" if entry["kind"] == "message" else f", {entry['kind']}"
        click.echo(f"\n{local_minutes(entry['created_at'])}  {who}{kind}\n{entry['text']}")
        for file in entry["attachments"]:
            click.echo(f"  file {file['id']}  {file['name']}  {file['size_bytes']} bytes")


@ticket.command("open")
@click.argument("title")
@click.option("--text", required=True, help="The message.")
@click.option("--about", type=(click.Choice(_KINDS), str), help="Such as: --about job ID.")
@click.option("--to", type=click.Choice(("provider", "operator")), help="Whom it asks.")
@click.option("--tenant", help="As an operator, the ID of the tenant that you write to.")
@files_option
@output_option
def open_ticket(
    title: str,
    *,
    text: str,
    about: tuple[str, str] | None,
    to: str | None,
    tenant: str | None,
    files: tuple[BinaryIO, ...],
    output: str,
) -> None:
    """Open a ticket.

    \b
    vedette ticket open "Job stops" --text "After a minute." --about job ID --file nccl.log
    """
    body: dict[str, Any] = {"title": title, "text": text, "files": _encoded(files)}
    if about is not None:
        body["subject_kind"], body["subject_id"] = about
    if to is not None:
        body["recipient"] = to
    if tenant is not None:
        body["tenant_id"] = tenant
    _change("", body, output)


@ticket.command("reply")
@click.argument("ticket_id")
@click.option("--text", required=True, help="The message.")
@click.option("--note", is_flag=True, help="For your side alone.")
@click.option("--waits-for", type=click.Choice(("customer", "provider", "operator")))
@files_option
@output_option
def reply(
    ticket_id: str,
    *,
    text: str,
    note: bool,
    waits_for: str | None,
    files: tuple[BinaryIO, ...],
    output: str,
) -> None:
    """Add a message, or a note for your side, to a ticket."""
    body = {"text": text, "is_internal": note, "files": _encoded(files)}
    if waits_for is not None:
        body["waits_for"] = waits_for
    _change(f"/{ticket_id}/messages", body, output)


def _add_action(action: str, help_text: str) -> None:
    @ticket.command(action, help=help_text)
    @click.argument("ticket_id")
    @output_option
    def act(ticket_id: str, output: str) -> None:
        _change(f"/{ticket_id}/{action}", None, output)


_add_action("solve", "Mark a ticket as solved.")
_add_action("reopen", "Open a ticket again that was solved within the last two weeks.")
_add_action("close", "Close a solved ticket for good.")
_add_action("call-operator", "Call the operator in, who then sees the thread.")


@ticket.command("assign")
@click.argument("ticket_id")
@click.argument("user", default="")
@output_option
def assign(ticket_id: str, user: str, output: str) -> None:
    """Say who of your side works on a ticket; without USER, nobody."""
    _change(f"/{ticket_id}/assign", {"user": user}, output)


@ticket.command("rate")
@click.argument("ticket_id")
@click.argument("rating", type=click.IntRange(1, 5))
@click.option("--comment", default="")
@output_option
def rate(ticket_id: str, rating: int, comment: str, output: str) -> None:
    """Rate the support of a solved ticket, from 1 (bad) to 5 (very good)."""
    _change(f"/{ticket_id}/rate", {"rating": rating, "comment": comment}, output)


@ticket.command("download")
@click.argument("ticket_id")
@click.argument("attachment_id")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def download(ticket_id: str, attachment_id: str, file: Path) -> None:
    """Download a file of a ticket; `ticket show` lists them."""
    with Client() as client:
        content = client.download(f"{_PATH}/{ticket_id}/attachments/{attachment_id}")
    file.write_bytes(content)
    click.echo(f"{len(content)} bytes written to {file}")


def _change(path: str, body: dict[str, Any] | None, output: str) -> None:
    with Client() as client:
        shown = client.post(f"{_PATH}{path}", body)
    if output != "table":
        print_object(shown, output)
        return
    click.echo(f"Ticket {shown['id']} is {shown['state'].replace('_', ' ')}")


def _encoded(files: tuple[BinaryIO, ...]) -> list[dict[str, str]]:
    return [
        {"name": Path(file.name).name, "content": base64.b64encode(file.read()).decode()}
        for file in files
    ]


def _clock(shown: dict[str, Any]) -> str:
    took = shown["first_response_seconds"]
    if took is not None:
        return f"first answer after {format_duration(took)}"
    return "late" if shown["is_late"] else f"due {local_minutes(shown['due_at'])}"
