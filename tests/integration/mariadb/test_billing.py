"""Lines are the same on MariaDB, whose sums are decimals, as on SQLite."""

import pytest

from tests.unit.marketplace.test_accrual import (  # noqa: F401 - the tests run here, too
    TestMinimum,
    contract,
    test_a_discount_is_a_line_of_its_own,
    test_a_row_is_charged_once_and_its_correction_on_top,
    test_a_row_that_commits_late_is_not_missed,
)

pytestmark = pytest.mark.needs_mariadb
