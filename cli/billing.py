"""`vedette billing`: prices, lines, invoices and credit, through the REST API.

`replay` and `close` work on this server's database, see `cli/billing_host.py`.
"""

import importlib
from datetime import datetime
from typing import Any
from urllib.parse import quote

import click

from cli.client import Columns, all_items, fetch_items, output_option, print_object, print_rows
from cli.local_time import local_minutes
from core.errors import InvalidInputError
from vedette.client import Client

KINDS = ("invoice", "statement", "cost_statement")
_SINCE = click.option("--since", help="RFC 3339, such as 2026-03-01T00:00:00Z. 30 days ago.")
_UNTIL = click.option("--until", help="The same; exclusive. Defaults to now.")
_FILE = click.option("-f", "--file", type=click.File("wb"), default="-", help="Defaults to stdout.")
_DAY = click.DateTime(["%Y-%m-%d"])


@click.group()
def billing() -> None:
    """Show what GPUs cost: prices, invoices, statements and prepaid credit."""


@billing.command()
@output_option
def prices(output: str) -> None:
    """List the price lists of your tenant's appliances, and the operator's default."""
    with Client() as client:
        items = client.get("/billing/price-lists")["items"]
    columns: Columns = {
        "ID": "id",
        "OF": lambda row: "tenant" if row["tenant_id"] else "operator",
        "FROM": lambda row: local_minutes(row["valid_from"]),
        "UNTIL": lambda row: local_minutes(row["valid_until"]),
        "PRICES": lambda row: ", ".join(
            f"{price['gpu_model'] or 'others'}={price['price']}" for price in row["prices"]
        ),
    }
    empty = "No prices yet. Set some: vedette billing set-prices --price H100=2.45"
    print_rows([{**item, "name": item["id"]} for item in items], output, columns, empty=empty)


@billing.command("set-prices")
@click.option(
    "--price",
    "pairs",
    multiple=True,
    required=True,
    metavar="MODEL=PRICE",
    help="Of a GPU for an hour, by a word of its model; =PRICE is of all others.",
)
@click.option("--from", "valid_from", help="The first hour, in RFC 3339. Defaults to the next one.")
@click.option("--until", "valid_until", help="The hour after the last one.")
@click.option("--note", default="", help="Why.")
def set_prices(
    pairs: tuple[str, ...], valid_from: str | None, valid_until: str | None, note: str
) -> None:
    """Add a price list, which replaces the one before from its first hour on."""
    rows = []
    for pair in pairs:
        model, separator, price = pair.rpartition("=")
        if not separator:
            raise InvalidInputError(f"{pair!r} is not MODEL=PRICE, such as H100=2.45.")
        rows.append({"gpu_model": model, "price": price})
    body = {"prices": rows, "valid_from": valid_from, "valid_until": valid_until, "note": note}
    with Client() as client:
        created = client.post("/billing/price-lists", body)
    click.echo(f"{created['id']} from {local_minutes(created['valid_from'])}")


@billing.command("delete-prices")
@click.argument("price_list_id")
def delete_prices(price_list_id: str) -> None:
    """Delete the price list PRICE_LIST_ID, which has not begun."""
    with Client() as client:
        client.delete(f"/billing/price-lists/{quote(price_list_id, safe='')}")
    click.echo(f"{price_list_id} deleted")


@billing.command("list")
@click.option("--kind", type=click.Choice(KINDS))
@click.option("--month", help="Such as 2026-03.")
@click.option("--issued-since", help="RFC 3339, for an export that continues.")
@output_option
def list_documents(
    kind: str | None, month: str | None, issued_since: str | None, output: str
) -> None:
    """List invoices and statements, the latest first."""
    query = {"kind": kind, "month": month or None, "issued_since": issued_since or None}
    items = fetch_items("/billing/documents", **query)
    columns: Columns = {
        "NUMBER": "number",
        "KIND": "title",
        "MONTH": "month",
        "TENANT": "tenant_name",
        "TOTAL": lambda row: f"{row['currency']} {row['total']}",
        "TO BE PAID": lambda row: f"{row['currency']} {row['due']}",
        "ID": "id",
    }
    empty = "No invoices or statements yet. They are issued two days after a month."
    print_rows([{**item, "name": item["number"]} for item in items], output, columns, empty=empty)


@billing.command()
@click.argument("number")
@output_option
def show(number: str, output: str) -> None:
    """Show the items of the invoice or statement NUMBER (or ID)."""
    with Client() as client:
        item = client.get(f"/billing/documents/{_document_id(client, number)}")
    if output in {"json", "yaml"}:
        print_object(item, output)
        return
    click.echo(f"{item['title']} {item['number']}, {item['month']}, {item['tenant_name']}")
    columns: Columns = {
        "NO.": "number",
        "SUBJECT": "subject",
        "MONTH": "month",
        "FOR": lambda row: " ".join(filter(None, (row["text"], row["gpu_model"]))),
        "GPU-HOURS": "gpu_hours",
        "PRICE": "unit_price",
        f"AMOUNT {item['currency']}": "amount",
    }
    print_rows(item["items"], output, columns, name="subject")
    for name in ("net", "tax", "fee", "total", "prepaid", "due"):
        click.echo(f"{name:>8} {item[name]}")


@billing.command()
@click.argument("number")
@click.option("--format", "file_format", type=click.Choice(("pdf", "csv")), default="pdf")
@_FILE
def download(number: str, file_format: str, file: Any) -> None:  # noqa: ANN401 - click's
    """Write the invoice or statement NUMBER (or ID) as PDF or CSV."""
    with Client() as client:
        path = f"/billing/documents/{_document_id(client, number)}/{file_format}"
        file.write(client.download(path))


@billing.command()
@_SINCE
@_UNTIL
@click.option("--earned", is_flag=True, help="What others pay you as a provider.")
@click.option("--focus", is_flag=True, help="In the columns of FOCUS 1.0.")
@_FILE
def export(
    *,
    since: str | None,
    until: str | None,
    earned: bool,
    focus: bool,
    file: Any,  # noqa: ANN401 - click's binary file
) -> None:
    """Write what each hour of use cost as CSV, oldest first."""
    if earned and focus:
        raise InvalidInputError("--focus exports what you pay. Leave --earned out.")
    query = {"since": since, "until": until}
    if earned:
        query["side"] = "earned"
    with Client() as client:
        path = "/billing/focus" if focus else "/billing/lines/export"
        for part in client.download_in_parts(path, **query):
            file.write(part)


@billing.command()
@click.option("--tenant", help="The ID of a tenant, for operators.")
@click.option("--add", "amount", help="Operators: a payment in advance, such as 100.00.")
@click.option("--reference", help="With --add: of the payment.")
@click.option("--note", default="", help="With --add: what the tenant sees.")
@output_option
def credit(
    *, tenant: str | None, amount: str | None, reference: str | None, note: str, output: str
) -> None:
    """Show prepaid credit; operators enter payments of tenants."""
    with Client() as client:
        if amount is not None:
            if not tenant or not reference:
                raise InvalidInputError("--add needs --tenant and --reference.")
            body = {"tenant_id": tenant, "amount": amount, "reference": reference, "note": note}
            client.post("/billing/credit", body)
        item = client.get("/billing/credit", tenant_id=tenant)
    if output != "table":
        print_object(item, output)
        return
    for name in ("balance", "open_amount", "available"):
        click.echo(f"{name.replace('_', ' '):>12} {item[name]}")
    columns: Columns = {
        "AT": lambda entry: local_minutes(entry["created_at"]),
        "AMOUNT": "amount",
        "NOTE": "note",
    }
    print_rows(item["entries"], output, columns)


@billing.command()
@click.option("--amount", required=True, help="In cents, such as -12.50 in favor of who pays.")
@click.option("--note", required=True, help="Why; both sides see it.")
@click.option("--reference", required=True, help="Such as a ticket; unique.")
@click.option(
    "--contract", "contract_id", default="", help="The ID of the contract that it is about."
)
@click.option(
    "--tenant", "tenant_id", default="", help="Without a contract: the ID of whose own use."
)
@click.option("--at", help="The time that it corrects, in RFC 3339. Defaults to now.")
def correct(**fields: str | None) -> None:
    """Correct what a contract or a tenant's own use cost (operators)."""
    with Client() as client:
        line = client.post("/billing/corrections", fields)
    click.echo(f"{line['id']} {line['amount']}")


@billing.command()
@click.option("--since", type=_DAY, default="1970-01-01", help="The first day, in UTC.")
@click.option("--until", type=_DAY, default=None, help="The day after the last one.")
def replay(since: datetime, until: datetime | None) -> None:
    """Compute this server's lines and invoices again, and compare (on the host).

    It changes nothing, and exits with 1 where something differs.
    """
    _host().replay_all(since, until)


@billing.command()
def close() -> None:
    """Charge this server's ledger and issue what is due, as the scheduler does (on the host)."""
    _host().close_due()


def _host() -> Any:  # noqa: ANN401 - a module that needs the packages of the server
    try:
        return importlib.import_module("cli.billing_host")
    except ModuleNotFoundError as error:
        raise InvalidInputError(
            f"This command needs the server packages ({error.name} is missing). "
            "Install them with: pip install 'vedette[server]'"
        ) from None


def _document_id(client: Client, number: str) -> str:
    """Return the ID of a document."""
    for item in all_items(client, "/billing/documents"):
        if number in {item["id"], item["number"]}:
            return str(item["id"])
    raise InvalidInputError(
        f"There is no invoice or statement {number!r}. See: vedette billing list"
    )
