"""Evidence, ratings and reputations are the same on MariaDB as on SQLite."""

import pytest

from tests.unit.marketplace.test_reputation import (  # noqa: F401 - the tests run here, too
    contract,
    test_a_customer_rates_once_a_month_after_a_job_ended_there,
    test_a_refresh_twice_or_half_way_counts_nothing_twice,
    test_days_of_offered_appliances_are_evidence_by_how_long_they_were_reachable,
    test_evidence_moves_the_reputation_that_placement_and_lists_read,
    test_evidence_outlives_withdrawn_appliances_deleted_jobs_and_lost_samples,
    test_the_first_refresh_computes_the_past_and_each_day_adds_a_row,
    test_ties_come_from_billing_emails_shared_users_and_mutual_praise,
)

pytestmark = pytest.mark.needs_mariadb
