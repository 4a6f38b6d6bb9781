"""Datasets on MariaDB: versions, manifests, jobs that use them, and the sweep of parts."""

import pytest

from tests.unit.datasets.test_catalog import (  # noqa: F401 - the tests run here, too
    dgx,
    test_a_source_is_read_once_at_a_time,
    test_a_source_waits_for_an_appliance_and_moves_to_another,
    test_an_upload_with_the_same_key_goes_on,
    test_what_jobs_use_is_not_deleted,
)
from tests.unit.datasets.test_parts import (  # noqa: F401 - the tests run here, too
    announced,
    settings,
    store,
    stored,
    tasks,
    test_an_abandoned_upload_fails_and_its_parts_are_swept,
    test_an_upload_waits_while_the_sweep_deletes_the_same_content,
    test_two_uploads_record_the_same_content_once,
    test_what_is_above_the_quota_is_refused,
    test_what_is_being_uploaded_is_never_swept,
)

pytestmark = pytest.mark.needs_mariadb
