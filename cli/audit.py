"""`vedette audit`: verify the hash chains of the audit log, and export it."""

import sys
from pathlib import Path
from typing import TextIO

import click

from cli.database import OPERATOR, open_database
from core.clock import utc_now
from core.db import transaction
from core.settings import load_server_settings
from tenants.auditing.chain import Head, verify_all
from tenants.auditing.log import EVERY_CHAIN, AuditFormat, AuditQuery, as_file, export_entries
from tenants.auditing.recording import record

_PROGRESS_ENTRIES = 100_000


@click.group()
def audit() -> None:
    """Verify and export the audit log of this server's database."""


@audit.command()
@click.option(
    "--known",
    "earlier",
    type=click.File("r"),
    help="Earlier output of this command; fails unless the log still has those entries.",
)
def verify(earlier: TextIO | None) -> None:
    """Verify all chains; print the number and hash of the last entry of each.

    Store the output on another host and pass it as --known next time. Someone who can write to
    the database could replace the whole log; only a hash stored out of their reach reveals it.
    """
    heads = [] if earlier is None else [Head.parse(line) for line in earlier if line.strip()]
    with open_database(load_server_settings()) as (_engine, sessions), sessions() as session:
        verdicts = verify_all(session, known_heads=heads, progress=_progress)
    for verdict in verdicts:
        click.echo(str(verdict.head))
    broken = [verdict for verdict in verdicts if verdict.problem]
    for verdict in broken:
        click.secho(f"{verdict.head.chain}: {verdict.problem}", fg="red", err=True)
    entries = sum(verdict.head.number for verdict in verdicts)
    intact = len(verdicts) - len(broken)
    click.echo(f"{intact} of {len(verdicts)} chains are intact; {entries:,} entries.", err=True)
    sys.exit(1 if broken else 0)


@audit.command()
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--format",
    "format_name",
    type=click.Choice([audit_format.value for audit_format in AuditFormat]),
    help="Defaults to csv if PATH ends in .csv, else jsonl.",
)
@click.option("--chain", default=EVERY_CHAIN, help="Tenant ID or `platform`. Defaults to all.")
def export(path: Path, *, format_name: str | None, chain: str) -> None:
    """Export the audit log to the file PATH, newest entries first."""
    default = AuditFormat.CSV if path.suffix == ".csv" else AuditFormat.JSONL
    file_format = AuditFormat(format_name) if format_name else default
    with open_database(load_server_settings()) as (_engine, sessions):
        with transaction(sessions) as session:
            record(
                session,
                action="audit.exported",
                target_name=chain,
                tenant_id=None,
                after={"format": file_format.value},
                now=utc_now(),
            )
        entries = export_entries(sessions, OPERATOR, AuditQuery(chain=chain))
        with path.open("w", encoding="utf-8", newline="") as file:
            file.writelines(as_file(entries, file_format))
    click.echo(f"Wrote {path}.")


def _progress(chain: str, number: int) -> None:
    if number % _PROGRESS_ENTRIES == 0:
        click.echo(f"  {chain}: {number:,} entries", err=True)
