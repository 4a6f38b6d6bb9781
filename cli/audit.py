"""`vedette audit`: check the audit log's chains, and export them."""

import sys
from pathlib import Path
from typing import TextIO

import click

from cli.database import open_database
from core.clock import utc_now
from core.db import transaction
from core.settings import load_server_settings
from tenants.audit import record
from tenants.auditing.export import AuditFormat, as_file
from tenants.auditing.log import EVERY_CHAIN, AuditQuery, export_entries
from tenants.auditing.verification import Head, Verdict, verify_all
from tenants.models import Role
from tenants.scope import Scope

_PROGRESS_ENTRIES = 100_000
# The command line needs the database, and with it has all that an operator may.
_OPERATOR = Scope(user_id="", role=Role.OPERATOR, tenant_id=None)


@click.group()
def audit() -> None:
    """Check and export the audit log of this server's database."""


@audit.command()
@click.option(
    "--known",
    type=click.File("r"),
    help="A former output of this command: the log must still hold those entries.",
)
def verify(known: TextIO | None) -> None:
    """Go along every chain; print its last entry's number and hash.

    Keep the output somewhere else, such as on another host: who can write to the database could
    make up a whole new log, and only a hash that they can't reach shows it. Give it back by
    --known.
    """
    kept = [] if known is None else [Head.parse(line) for line in known if line.strip()]
    with open_database(load_server_settings()) as (_engine, sessions), sessions() as session:
        verdicts = verify_all(session, known=kept, progress=_progress)
    for verdict in verdicts:
        click.echo(str(verdict.head))
    faults = [one for one in verdicts if one.fault]
    for one in faults:
        click.secho(f"{one.head.chain}: {one.fault}", fg="red", err=True)
    click.echo(_summary(verdicts), err=True)
    sys.exit(1 if faults else 0)


@audit.command()
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--format", "wanted", type=click.Choice([one.value for one in AuditFormat]),
    help="By the ending of PATH when left out; jsonl where that says nothing.",
)  # fmt: skip
@click.option("--chain", default=EVERY_CHAIN, help="A tenant's id, or platform; all of them else.")
def export(path: Path, *, wanted: str | None, chain: str) -> None:
    """Write the audit log into the file PATH, newest entries first."""
    query = AuditQuery(chain=chain)
    file_format = AuditFormat.CSV if path.suffix == ".csv" else AuditFormat.JSONL
    if wanted is not None:
        file_format = AuditFormat(wanted)
    with open_database(load_server_settings()) as (_engine, sessions):
        with transaction(sessions) as session:
            record(
                session, action="audit.exported", target_kind="audit", target_id=None,
                target_name=chain, tenant_id=None, after={"format": file_format.value},
                now=utc_now(),
            )  # fmt: skip
        with path.open("w", encoding="utf-8", newline="") as file:
            file.writelines(as_file(export_entries(sessions, _OPERATOR, query), file_format))
    click.echo(f"{path} is written.")


def _progress(chain: str, number: int) -> None:
    if number % _PROGRESS_ENTRIES == 0:
        click.echo(f"  {chain}: {number:,} entries", err=True)


def _summary(verdicts: list[Verdict]) -> str:
    whole = sum(not one.fault for one in verdicts)
    entries = sum(one.head.number for one in verdicts)
    return f"{whole} of {len(verdicts)} chains are whole; {entries:,} entries were read."
