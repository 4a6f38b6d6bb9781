"""Costs and budgets are the same on MariaDB, whose sums are decimals, as on SQLite."""

import pytest

from tests.unit.marketplace.conftest import make_tasks, own_price  # noqa: F401 - fixtures
from tests.unit.marketplace.test_budgets import (  # noqa: F401 - the tests run here, too
    tasks,
    test_a_budget_of_a_project_counts_those_below_it_and_one_of_a_user_their_jobs,
    test_a_change_at_the_same_time_wins_over_an_evaluation,
    test_a_spent_budget_refuses_and_holds_jobs_with_gpus_until_it_is_raised,
    test_a_target_has_one_budget,
    test_each_level_is_reported_once_in_a_month_and_anew_in_the_next,
    test_running_jobs_stop_after_the_grace_with_the_reason,
)
from tests.unit.marketplace.test_costs import (  # noqa: F401 - the tests run here, too
    test_a_job_counts_once_while_it_runs_when_it_is_recorded_and_when_it_is_charged,
    test_costs_are_grouped_with_names_the_most_expensive_first,
)

pytestmark = pytest.mark.needs_mariadb
