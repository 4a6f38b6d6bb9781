from sqlalchemy import select

from core.db import SessionFactory
from tenants.fleet.appliances import ReportCache
from tenants.models import Appliance
from tests.cast import Cast, make_appliance


def test_a_report_is_parsed_again_only_when_it_has_changed(
    sessions: SessionFactory, cast: Cast
) -> None:
    parsed: list[str] = []

    def parse(inventory: str, health: str | None) -> str:
        parsed.append(f"{inventory} {health}")
        return parsed[-1]

    with sessions.begin() as session:
        idents = [make_appliance(session, cast.acme, f"gpu-0{n}").id for n in range(3)]
    cache = ReportCache(parse, max_reports=2)

    def read(*wanted: str) -> dict[str, str]:
        with sessions() as session:
            statement = select(Appliance.id, Appliance.report_id).where(Appliance.id.in_(wanted))
            report_ids = {ident: report_id for ident, report_id in session.execute(statement)}  # noqa: C416
            return cache.read(session, dict.fromkeys(wanted) | report_ids)

    assert read(idents[0]) == read(idents[0]) == {idents[0]: "{} None"}
    assert len(parsed) == 1
    with sessions.begin() as session:
        session.get_one(Appliance, idents[0]).health = {"state": "failed"}
    assert read(idents[0]) == {idents[0]: '{} {"state": "failed"}'}
    assert len(parsed) == 2
    # More reports than it has room for are still complete; one that was deleted is left out.
    assert read(*idents, "deleted").keys() == set(idents)
    assert len(parsed) == 4
