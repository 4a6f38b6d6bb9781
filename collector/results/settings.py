"""`[results]`: the output folders of jobs on this appliance, and their uploads."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

GIBIBYTE = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultSettings:
    """The settings of `[results]`.

    Attributes:
        enabled: whether jobs with output folders may run here.
        interval_seconds: between two looks at the output folders of a job that runs.
        settle_seconds: how long a file that was written in place must be unchanged before it is
            uploaded; the end of the attempt uploads all.
        max_bytes: of all files of a job; larger ones are left out, with a message.
        max_bytes_per_second: of uploads; 0 is no limit.
        end_wait_seconds: how long the end of an attempt waits for the upload of its results.
        keep_seconds: how long folders stay after all is uploaded, for the next attempt.
    """

    enabled: bool = True
    interval_seconds: Annotated[float, Meta(ge=1)] = 10.0
    settle_seconds: Annotated[float, Meta(ge=0)] = 5.0
    max_bytes: Annotated[int, Meta(ge=1024)] = 1024 * GIBIBYTE
    max_bytes_per_second: Annotated[float, Meta(ge=0)] = 0.0
    end_wait_seconds: Annotated[float, Meta(ge=0)] = 600.0
    keep_seconds: Annotated[float, Meta(ge=0)] = 3600.0
