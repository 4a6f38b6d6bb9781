"""The catalog of XIDs: what NVIDIA says of the numbers that matter most."""

import pytest

from protocol.xids import XIDS, XIDKind, xid


@pytest.mark.parametrize(
    ("kind", "codes"),
    [
        # RESET_GPU and RESTART_BM of the catalog; 48 and 74 by their workflows.
        (XIDKind.FATAL, [46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 158]),
        (XIDKind.WARNING, [63, 92, 93, 94, 109, 154, 156, 157]),
        (XIDKind.APPLICATION, [8, 11, 13, 25, 31, 32, 39, 43, 45, 68, 69, 80, 105, 126, 139]),
    ],
)
def test_a_number_is_of_the_kind_that_its_immediate_action_makes_it(
    kind: XIDKind, codes: list[int]
) -> None:
    assert {code: xid(code).kind for code in codes} == dict.fromkeys(codes, kind)


def test_every_number_has_a_title_and_advice() -> None:
    for code, entry in XIDS.items():
        assert entry.code == code
        assert entry.title, code
        assert not entry.title.endswith("."), code
        assert entry.advice.endswith("."), code


def test_a_number_that_is_not_listed_is_a_warning() -> None:
    assert 9999 not in XIDS
    assert xid(9999).kind is XIDKind.WARNING
