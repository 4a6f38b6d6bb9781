"""The number by which an appliance's samples are laid together, beside each sample.

Every sample has the number from the moment it is written, so that a query for one appliance passes
by all others by that column alone; whether a sample still lies where it came, says another.
"""

from collections.abc import Sequence

import duckdb
import pyarrow as pa

from timeseries.duckdb.schema import (
    CLUSTER_COLUMN,
    LOOSE_COLUMN,
    cluster_of,
    quoted,
    sample_tables,
    tag_column,
    upgrade_ddl,
)
from timeseries.store import APPLIANCE_TAG

_APPLIANCE = tag_column(APPLIANCE_TAG)
_CLUSTER, _LOOSE = quoted(CLUSTER_COLUMN), quoted(LOOSE_COLUMN)
_WITHOUT = f"WHERE {_CLUSTER} IS NULL AND {quoted(_APPLIANCE)} IS NOT NULL"


def numbered(data: pa.Table) -> pa.Table:
    """Return the columns of new samples with those that are the store's own."""
    coded = data.column(_APPLIANCE).unify_dictionaries().combine_chunks()
    if not pa.types.is_dictionary(coded.type):
        coded = coded.dictionary_encode()
    numbers = [None if name is None else cluster_of(name) for name in coded.dictionary.to_pylist()]
    clusters = pa.array(numbers, pa.uint16()).take(coded.indices)
    loose = pa.repeat(True, data.num_rows)  # noqa: FBT003 - the value itself
    return data.append_column(CLUSTER_COLUMN, clusters).append_column(LOOSE_COLUMN, loose)


def upgrade(cursor: duckdb.DuckDBPyConnection, columns: Sequence[tuple[str, str, str]]) -> None:
    """Bring the tables of earlier versions up to date, given the rows of `READ_COLUMNS`."""
    for statement in upgrade_ddl(columns):
        cursor.execute(statement)
    for table in map(quoted, sample_tables(columns)):
        found = cursor.execute(f"SELECT DISTINCT {quoted(_APPLIANCE)} FROM {table} {_WITHOUT}")  # noqa: S608 - own identifiers only
        if names := [name for (name,) in found.fetchall()]:
            cursor.execute(
                f"UPDATE {table} SET {_CLUSTER} = number, {_LOOSE} = TRUE FROM "  # noqa: S608 - own identifiers only
                "(SELECT unnest(CAST(? AS VARCHAR[])) AS name, "
                "unnest(CAST(? AS USMALLINT[])) AS number) AS clusters "
                f"{_WITHOUT} AND {quoted(_APPLIANCE)} = name",
                [names, [cluster_of(name) for name in names]],
            )
