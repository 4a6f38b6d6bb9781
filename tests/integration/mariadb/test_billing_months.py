"""Invoices and statements are the same on MariaDB as on SQLite."""

import pytest

from tests.unit.marketplace.test_closing import (  # noqa: F401 - the tests run here, too
    contract,
    month,
    test_an_invoice_and_a_statement_agree_with_the_ledger_computed_by_hand,
    test_late_corrections_are_in_the_next_month_as_such,
    test_own_use_is_a_cost_statement_by_project,
)

pytestmark = pytest.mark.needs_mariadb
