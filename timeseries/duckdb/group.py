"""What is to be written for a group of submissions, before anything is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from timeseries.duckdb.ingest import parts_by_measurement, plan_insert
from timeseries.duckdb.schema import Schema
from timeseries.store import RejectedPoint
from timeseries.write_queue import Submission


@dataclass(frozen=True, slots=True)
class Group:
    """The plan of a group.

    Attributes:
        columns: measurement to the columns to write.
        schema: what the tables must look like then.
        rejected: the points of each submission that were refused, by position.
    """

    columns: Mapping[str, pa.Table]
    schema: Schema
    rejected: Sequence[list[RejectedPoint]]

    @property
    def points(self) -> int:
        """How many points there are to write."""
        return sum(data.num_rows for data in self.columns.values())


def planned_group(submissions: Sequence[Submission], *, schema: Schema) -> Group:
    """Return the plan of some submissions, given what the tables look like before."""
    rejected: list[list[RejectedPoint]] = [[] for _ in submissions]
    columns, after = {}, dict(schema)
    parts = parts_by_measurement((one.batch, one.identity) for one in submissions)
    for measurement, some in parts.items():
        insert = plan_insert(measurement, some, schema=after)
        for (submission, position), reason in insert.refused.items():
            rejected[submission].append(RejectedPoint(position, reason))
        if insert.data is not None:
            columns[measurement], after[measurement] = insert.data, insert.table
    for answer in rejected:
        answer.sort(key=lambda point: point.position)
    return Group(columns, after, rejected)
