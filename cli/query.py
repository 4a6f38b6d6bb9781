"""`vedette query`: aggregates of samples as CSV, through the REST API."""

import click

from vedette.client import Client


@click.command()
@click.argument("measurement")
@click.argument("fields", nargs=-1, required=True)
@click.option(
    "--aggregate",
    default="avg",
    show_default=True,
    help="Of all samples in a window, such as max, count or p95.",
)
@click.option("--step", help="Width of the windows, such as 5m. Defaults to the whole range.")
@click.option("--by", multiple=True, metavar="TAG", help="Group by this tag; repeatable.")
@click.option("--filter", "filters", multiple=True, metavar="TAG=VALUE", help="Repeatable.")
@click.option("--since", default="-1h", show_default=True, help="RFC 3339 or relative, as -6h.")
@click.option("--until", default="now", show_default=True, help="The same; exclusive.")
def query(
    measurement: str,
    fields: tuple[str, ...],
    by: tuple[str, ...],
    filters: tuple[str, ...],
    **options: str | None,
) -> None:
    """Print aggregates of the FIELDS of a MEASUREMENT, a row for each group and window.

    \b
    vedette query gpu power_watts temperature_celsius --by appliance --step 5m --since -6h
    """
    pairs = [("measurement", measurement), ("fields", ",".join(fields))]
    pairs += [("group_by", ",".join(by))] if by else []
    pairs += [("filter", text) for text in filters]
    pairs += [(name, value) for name, value in options.items() if value is not None]
    with Client() as client:
        for number, page in enumerate(client.csv_pages("/query", pairs)):
            click.echo(page if number == 0 else page.partition("\r\n")[2], nl=False)
