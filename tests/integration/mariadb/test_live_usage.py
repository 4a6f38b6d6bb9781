"""GPU time that the ledger doesn't have is added and paged on MariaDB as on SQLite."""

import pytest

from tests.unit.jobqueue.test_live_usage import (  # noqa: F401 - the tests run here, too
    attempt,
    test_groupings_add_up_to_the_sum,
    test_pages_hold_every_group_once_in_order,
    test_the_current_hour_counts_before_the_ledger_has_it,
)

pytestmark = pytest.mark.needs_mariadb
