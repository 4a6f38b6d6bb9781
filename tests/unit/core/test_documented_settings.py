"""docs/operating.md has every setting, and no other."""

import re
from dataclasses import fields
from pathlib import Path

from core.settings import ServerSettings

TABLE = re.compile(r"\| setting \| default \| meaning \|\n\| --- .*\n((?:\|.*\n)+)")
DOCUMENT = Path(__file__).parents[3] / "docs" / "operating.md"


def test_every_setting_is_documented_once() -> None:
    rows = "".join(TABLE.findall(DOCUMENT.read_text("utf-8"))).splitlines()
    names = [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(set(names)) == sorted(field.name for field in fields(ServerSettings))
