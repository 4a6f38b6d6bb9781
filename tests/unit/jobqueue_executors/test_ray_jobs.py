"""What the executor of Ray submits."""

import json
from pathlib import Path
from typing import Any

from jobqueue.executors.ray.jobs import request_of
from jobqueue.executors.recorded import ExecutorSite
from protocol.attempts import AttemptSpec
from protocol.clusters import requested_gpus

SITE = ExecutorSite(owner="01a2-owner", state_dir=Path("unused"))


def request(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - the fields of a spec
    spec = AttemptSpec(
        **{"attempt_id": "a", "job_id": "j", "name": "train", "image": "", "command": ["true"]}
        | changes
    )
    return request_of(spec, SITE, submission_id="vedette-a")


def test_a_job_asks_for_the_first_model_that_it_may_have() -> None:
    fields: dict[str, Any] = {"gpu_uuids": requested_gpus(2), "gpu_models": ["H100", "A100"]}
    made = request(**fields)
    assert made["entrypoint_num_gpus"] == 2
    assert made["entrypoint_resources"] == {"accelerator_type:H100": 0.001}
    own = {"ray.resources": json.dumps({"blue": 1, "accelerator_type:H100": 0.5})}
    made = request(**fields, cluster_options=own)
    assert made["entrypoint_resources"] == {"accelerator_type:H100": 0.5, "blue": 1}


def test_a_job_for_any_model_asks_for_none() -> None:
    assert "entrypoint_resources" not in request(gpu_uuids=requested_gpus(2))
