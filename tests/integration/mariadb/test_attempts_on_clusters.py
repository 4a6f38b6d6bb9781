"""Attempts on clusters on MariaDB: the node by its name, and the charge from the start on."""

import pytest

from tests.unit.jobqueue.test_attempts_on_clusters import (  # noqa: F401 - the tests run here, too
    test_a_job_that_the_cluster_preempts_is_queued_again_without_a_retry,
    test_a_job_waits_in_the_queue_of_the_cluster_and_runs_on_a_node_with_its_gpus,
    test_an_attempt_is_charged_from_its_start_on_the_cluster,
    test_an_attempt_that_never_left_the_queue_of_the_cluster_is_free,
)
from tests.unit.jobqueue.test_placement_through_connectors import (  # noqa: F401 - this, too
    test_pages_count_the_nodes_of_a_cluster_and_not_its_connector,
)

pytestmark = pytest.mark.needs_mariadb
