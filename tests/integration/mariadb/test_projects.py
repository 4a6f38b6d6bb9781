"""Projects on MariaDB: trees, names whatever their case, and a guarantee that is reclaimed."""

import pytest

from tests.unit.jobqueue.test_projects import (  # noqa: F401 - the tests run here, too
    test_a_guarantee_is_reclaimed_and_the_victim_is_told,
    test_a_move_that_would_close_a_circle_is_refused_with_the_path,
    test_a_name_is_unique_in_its_tenant_whatever_its_case,
)

pytestmark = pytest.mark.needs_mariadb
