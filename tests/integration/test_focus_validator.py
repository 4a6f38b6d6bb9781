"""The published validator of FOCUS accepts the export; `make focus` installs it."""

import subprocess
from pathlib import Path

import pytest

from core.db import SessionFactory
from marketplace.invoices.focus import focus_csv
from marketplace.models import Contract
from tests.cast import Cast, scope_of
from tests.unit.marketplace.test_focus import YEAR, contract  # noqa: F401 - a fixture

PYTHON = Path(__file__).parents[2] / ".venv-focus" / "bin" / "python"
VALIDATE = "from focus_validator.main import main; main()"
# Rules of validator 1.0.0 that no file of FOCUS 1.0 meets: they need columns of the preview.
IMPOSSIBLE = {
    "InvoiceIssuer_Required",  # InvoiceIssuerName in 1.0
    "Provider_Required",  # ProviderName
    "Publisher_Required",  # PublisherName
    "ResourceID_Required",  # ResourceId
    "SkuPriceId_Nullable",  # reads ChargeType, which is ChargeCategory
}


@pytest.mark.nightly
def test_the_validator_accepts_every_rule(
    sessions: SessionFactory,
    cast: Cast,
    contract: Contract,  # noqa: ARG001, F811 - the fixture
    tmp_path: Path,
) -> None:
    if not PYTHON.exists():
        pytest.skip(f"{PYTHON} is missing: run `make focus`")
    path = tmp_path / "focus.csv"
    path.write_text(
        "".join(
            focus_csv(sessions, scope_of(cast.alice), YEAR, currency="EUR", issuer="Vedette AS")
        )
    )
    options = ("--data-file", str(path), "--validate-version", "1.0")
    done = subprocess.run(
        [PYTHON, "-c", VALIDATE, *options],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        # It opens its list of currencies by a relative path.
        cwd=next(PYTHON.parents[1].glob("lib/python*/site-packages")),
    )
    assert "Traceback" not in done.stderr, done.stderr
    lines = done.stdout.splitlines()
    failed = {line.split()[0] for line in lines if line.endswith(" failed:")}
    assert failed == IMPOSSIBLE, done.stdout
