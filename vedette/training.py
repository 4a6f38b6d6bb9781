"""`vedette.log`: metrics of training, which the agent finds in the output of the job."""

import json
import math
import sys
from collections.abc import Mapping
from typing import SupportsFloat, TextIO


def log(
    metrics: Mapping[str, SupportsFloat] | None = None,
    /,
    *,
    step: int | None = None,
    file: TextIO | None = None,
    **values: SupportsFloat,
) -> None:
    """Report metrics of this job: they are plotted on its dashboard beside its GPUs.

    It prints a line and needs no network, so that it also works outside of jobs:

        vedette.log(step=10, loss=0.3, accuracy=0.91)
        vedette.log({"eval/loss": 0.4}, step=10)

    Args:
        metrics: values by names that are no Python names.
        step: of the training.
        file: where the line is printed; standard output by default.
        values: numbers by name, or what `float` takes, such as a tensor with one number.
    """
    numbers = {name: float(value) for name, value in {**(metrics or {}), **values}.items()}
    # JSON has neither NaN nor infinity: such a value is a gap in its chart.
    entry: dict[str, float | int | None] = {} if step is None else {"step": int(step)}
    entry |= {name: value if math.isfinite(value) else None for name, value in numbers.items()}
    print(json.dumps({"vedette": entry}), file=file or sys.stdout, flush=True)
