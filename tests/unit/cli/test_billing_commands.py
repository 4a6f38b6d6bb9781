"""`vedette billing` against a real portal, and its commands on the host."""

from pathlib import Path

import pytest

from core.db import SessionFactory
from tests.cast import Cast
from tests.fixtures.in_process import run_vedette
from tests.unit.cli.conftest import EnvironOf
from tests.unit.marketplace.ledger import MARCH, add_contract, add_use, terms
from tests.unit.marketplace.months import close

PERIOD = ("--since", "2026-03-01T00:00:00Z", "--until", "2026-04-01T00:00:00Z")


@pytest.fixture
def environ(environ_of: EnvironOf, cast: Cast, sessions: SessionFactory) -> dict[str, str]:
    """Of alice, whose tenant has an invoice."""
    with sessions.begin() as session:
        contract = add_contract(session, cast, terms("2.45"))
        add_use(session, cast.acme.id, MARCH, contract=contract)
    close(sessions)
    return environ_of(cast.alice)


def test_invoices_are_listed_shown_and_written(environ: dict[str, str], tmp_path: Path) -> None:
    listed = run_vedette("billing", "list", "--month", "2026-03", environ=environ).stdout
    assert "INV-2026-00001  Invoice  2026-03  Acme    EUR 3.06" in listed
    shown = run_vedette("billing", "show", "INV-2026-00001", environ=environ).stdout
    assert "GPU time NVIDIA H100 80GB HBM3" in shown
    assert "     tax 0.61" in shown
    path = tmp_path / "invoice.pdf"
    run_vedette("billing", "download", "INV-2026-00001", "-f", str(path), environ=environ)
    assert path.read_bytes().startswith(b"%PDF")
    missing = run_vedette("billing", "show", "INV-1", environ=environ)
    assert "There is no invoice or statement 'INV-1'" in missing.stderr


def test_lines_are_written_as_csv_and_in_focus(environ: dict[str, str]) -> None:
    lines = run_vedette("billing", "export", *PERIOD, environ=environ).stdout
    assert "2.45000000" in lines
    focus = run_vedette("billing", "export", *PERIOD, "--focus", environ=environ).stdout
    assert focus.startswith("AvailabilityZone,BilledCost")


def test_prices_are_set_listed_and_deleted(environ: dict[str, str]) -> None:
    prices = ("--price", "H100=2.45", "--price", "=0.40")
    ident = run_vedette("billing", "set-prices", *prices, environ=environ).stdout.split()[0]
    assert "H100=2.45, others=0.40" in run_vedette("billing", "prices", environ=environ).stdout
    run_vedette("billing", "delete-prices", ident, environ=environ)
    assert "No prices yet" in run_vedette("billing", "prices", environ=environ).stderr
    wrong = run_vedette("billing", "set-prices", "--price", "2.45", environ=environ)
    assert "'2.45' is not MODEL=PRICE" in wrong.stderr
    assert "balance 0.00" in run_vedette("billing", "credit", environ=environ).stdout


def test_an_empty_ledger_is_replayed_and_closed(tmp_path: Path) -> None:
    environ = {"VEDETTE_DATA_DIR": str(tmp_path / "data")}
    assert run_vedette("db", "upgrade", environ=environ).returncode == 0
    closed = run_vedette("billing", "close", environ=environ)
    assert (closed.returncode, closed.stdout) == (0, "0 lines added; months closed: none.\n")
    replayed = run_vedette("billing", "replay", environ=environ)
    assert (replayed.returncode, replayed.stdout.splitlines()[-1]) == (0, "Nothing differs.")
