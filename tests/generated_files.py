"""Files that are made from specs and tables by `make generate`; a test compares them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_origin

from core.spec import SpecField, spec_fields
from portal.api.job_requests import job_file_schema
from protocol.job_spec import JobRequest
from tests.metric_map_page import metric_map_page

ROOT = Path(__file__).parents[1]
_HEADER = '''"""The fields of a new job, made from `protocol.job_spec` by `make generate`."""

from collections.abc import Mapping, Sequence
from typing import TypedDict


class JobFields(TypedDict, total=False):
    """The optional fields of a new job."""

'''


def generated_files() -> dict[Path, str]:
    """Return the text of each file."""
    return {
        ROOT / "docs" / "metric-map.md": metric_map_page(),
        ROOT / "docs" / "job.schema.json": json.dumps(job_file_schema(), indent=2) + "\n",
        ROOT / "vedette" / "job_fields.py": _HEADER + "".join(_job_fields()),
    }


def _job_fields() -> Iterator[str]:
    for field in spec_fields(JobRequest).values():
        if field.name != "image":
            yield f"    {field.name}: {_type_text(field)}\n"


def _type_text(field: SpecField) -> str:
    if get_origin(field.type) is dict:
        text = "Mapping[str, str]"
    elif get_origin(field.type) is list:
        (item,) = get_args(field.type)
        text = "Sequence[str]" if item is str else "Sequence[Mapping[str, object]]"
    elif field.type in (int, float, bool):
        text = field.type.__name__
    else:
        text = "str" if issubclass(field.type, str) else "Mapping[str, object]"
    return f"{text} | None" if field.is_nullable else text


if __name__ == "__main__":
    for path, text in generated_files().items():
        path.write_text(text, "utf-8")
