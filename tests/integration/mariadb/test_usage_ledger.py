"""The usage ledger gives the same sums on MariaDB, whose sums are decimals, as on SQLite."""

import pytest

from tests.unit.jobqueue.test_usage_ledger import (  # noqa: F401 - the tests run here, too
    attempt,
    test_entries_outlive_their_job,
    test_late_samples_and_ends_are_appended_as_corrections,
    test_recomputing_gives_the_same_sum,
    test_sums_are_grouped_by_project_and_budget_label,
    test_sums_are_grouped_within_the_scope,
)

pytestmark = pytest.mark.needs_mariadb
