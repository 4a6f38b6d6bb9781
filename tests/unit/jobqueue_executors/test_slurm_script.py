"""The generic resources that jobs of Slurm ask for."""

import pytest

from jobqueue.executors.base import InvalidError
from jobqueue.executors.slurm.script import gres_of


@pytest.mark.parametrize(
    ("gpus", "option", "models", "gres"),
    [
        (2, "", [], "gpu:2"),
        (2, "", ["h100", "a100"], "gpu:h100:2"),
        (2, "shard:1", ["h100"], "gpu:h100:2,shard:1"),
        (2, "gpu:a100", [], "gpu:a100:2"),
        (2, "gpu:A100:2", ["h100", "a100"], "gpu:A100:2"),
        (2, "gpu:2", ["h100"], "gpu:h100:2"),
        (0, "shard:1", [], "shard:1"),
    ],
)
def test_the_type_is_the_one_of_the_option_or_the_first_model(
    gpus: int, option: str, models: list[str], gres: str
) -> None:
    assert gres_of(gpus, option, models) == gres


def test_an_option_that_contradicts_the_models_of_the_job_is_refused() -> None:
    with pytest.raises(InvalidError, match=r"has gpu:a100, and the GPUs .* here: h100, h200"):
        gres_of(2, "gpu:a100", ["h100", "h200"])
