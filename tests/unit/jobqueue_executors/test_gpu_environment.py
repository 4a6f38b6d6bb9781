"""A job's variables give its container no devices of the host, on any executor."""

import msgspec
import pytest

from jobqueue.executors.confinement import DEVICE_VARIABLES
from jobqueue.executors.docker.mapping import container_options
from jobqueue.executors.recorded import environment_of
from jobqueue.jobs.requests import request_errors
from protocol.attempts import AttemptSpec
from protocol.job_spec import JobRequest

SPEC = AttemptSpec(attempt_id="a", job_id="j", name="n", image="i")
HOSTILE = dict.fromkeys(DEVICE_VARIABLES, "enabled") | {"NVIDIA_DRIVER_CAPABILITIES": "all"}


@pytest.mark.parametrize("where", ["env", "secrets"])
def test_no_executor_passes_variables_on_that_give_devices(where: str) -> None:
    spec = msgspec.structs.replace(SPEC, **{where: HOSTILE})
    for environment in (
        container_options(spec, owner="dgx-01")["environment"],
        environment_of(spec),
    ):
        # Set, so that those of the image do not count either.
        assert {name: environment[name] for name in DEVICE_VARIABLES} == dict(DEVICE_VARIABLES)
        assert environment["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"


@pytest.mark.parametrize(
    ("wanted", "passed"),
    [
        ("", "compute,utility"),
        ("all", "compute,utility"),
        ("video,display,compute", "video,compute"),
        ("graphics", "graphics"),
    ],
)
def test_a_job_chooses_among_capabilities_without_displays(wanted: str, passed: str) -> None:
    spec = msgspec.structs.replace(SPEC, env={"NVIDIA_DRIVER_CAPABILITIES": wanted})
    assert environment_of(spec)["NVIDIA_DRIVER_CAPABILITIES"] == passed


@pytest.mark.parametrize("name", HOSTILE)
def test_such_a_variable_is_an_error_of_the_job(name: str) -> None:
    request = JobRequest(name="train", image="busybox", env={name: HOSTILE[name]})
    assert f"{name} would give the container devices of the host" in str(request_errors(request))
