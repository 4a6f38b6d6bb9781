"""The smallest SQL types that hold the floats of some samples exactly.

Most readings have at most three decimal places: those of drivers, of `/proc`, and percentages.
Parquet stores such decimals as integers, which compress better than the bits of floats.
"""

from collections.abc import Sequence

import duckdb

from timeseries.duckdb.query.sql import select

_MAX_SCALE = 3
_FLOAT_TYPES = (
    "BIGINT",
    *(f"DECIMAL(18, {scale})" for scale in range(1, _MAX_SCALE + 1)),
    "DOUBLE",
)
# How many decimal places hold the floats of a column exactly; more than there are if none do. There
# is no decimal -0.
_SCALE = f"coalesce(max(CASE WHEN {{0}} = 0 AND signbit({{0}}) THEN {_MAX_SCALE + 1} "
_SCALE += "WHEN {0} IS NULL OR {0} = trunc({0}) AND abs({0}) < 1e15 THEN 0 "
_SCALE += " ".join(
    f"WHEN {{0}} = round({{0}} * {10**scale}) / {10**scale} AND abs({{0}}) < 1e12 THEN {scale}"
    for scale in range(1, _MAX_SCALE + 1)
)
_SCALE += f" ELSE {_MAX_SCALE + 1} END), 0)"


def float_types(
    cursor: duckdb.DuckDBPyConnection,
    source: str,
    values: Sequence[object],
    columns: Sequence[str],
) -> dict[str, str]:
    """Return the type of each of some quoted columns of floats: the smallest that is exact."""
    if not columns:
        return {}
    floats = [f"CAST({column} AS DOUBLE)" for column in columns]
    scales = cursor.execute(
        select([_SCALE.format(number) for number in floats], source), values
    ).fetchall()[0]
    return {column: _FLOAT_TYPES[scale] for column, scale in zip(columns, scales, strict=True)}
