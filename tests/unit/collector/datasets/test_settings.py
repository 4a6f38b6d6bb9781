"""The settings of the cache, and what `vedette agent check` says about them."""

from pathlib import Path

import pytest

from collector.certificates import CERTIFICATE_NAME
from collector.checks.connections import Verdict
from collector.checks.datasets import check_datasets as results_of
from collector.config import AgentConfig, load_agent_config
from collector.datasets.settings import DatasetSettings, check_datasets


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"peer_listen": "nowhere"}, "expected address and port"),
        ({"peer_listen": "10.0.0.1:99999"}, "expected address and port"),
        ({"peer_listen": "0.0.0.0:8444"}, "peer_url is missing"),
        ({"peer_url": "https://a:1"}, "without peer_listen"),
        ({"peer_listen": "10.0.0.1:1", "peer_url": "http://a:1"}, "must start with https://"),
        ({"cache_max_byte": 1}, "cache_max_bytes"),
        ("text", "expected a table"),
    ],
)
def test_each_error_of_the_table_is_named(table: object, words: str) -> None:
    _, errors = check_datasets(table)
    assert any(words in error for error in errors)


def test_the_table_is_read_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(
        'portal_urls = ["https://p"]\n[datasets]\npeer_listen = "[::1]:8444"\ncache_dir = "/c"\n'
    )
    settings = load_agent_config(path).datasets
    assert settings.peer_address == ("::1", 8444)
    assert settings.public_url == "https://[::1]:8444"
    assert settings.cache_dir == Path("/c")


def verdicts(config: AgentConfig) -> list[Verdict]:
    return [result.verdict for result in results_of(config)]


def test_the_check_names_an_address_of_another_host_and_a_missing_certificate(
    tmp_path: Path,
) -> None:
    settings = DatasetSettings(peer_listen="192.0.2.1:8444", min_free_bytes=0)
    config = AgentConfig(data_dir=tmp_path, datasets=settings)
    assert verdicts(config) == [Verdict.OK, Verdict.WARNING]
    (tmp_path / CERTIFICATE_NAME).touch()
    assert verdicts(config) == [Verdict.OK, Verdict.FAIL]


def test_an_agent_without_jobs_needs_no_cache(tmp_path: Path) -> None:
    assert verdicts(AgentConfig(data_dir=tmp_path, executor="none")) == []
