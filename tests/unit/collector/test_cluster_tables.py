"""The tables `[slurm]`, `[ray]` and `[kubernetes]` of `agent.toml`: every error has a message."""

from pathlib import Path

import pytest

from collector.config import load_agent_config
from core.errors import ConfigurationError
from jobqueue.executors.settings import KubernetesSettings, RaySettings, SlurmSettings


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "agent.toml"
    path.write_text(f'portal_urls = ["https://portal.example.com"]\n{text}', encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[slurm]", '[slurm] is set; set executor = "slurm" to use it'),
        ('executor = "ray"\n[kubernetes]', '[kubernetes] is set; set executor = "kubernetes" to'),
        ('executor = "ray"', 'executor = "ray" needs a table [ray] with url'),
        ('executor = "ray"\n[ray]', "ray.url is missing"),
        ('executor = "ray"\nray = 1', "ray = 1: expected a table [ray]"),
        ('executor = "ray"\n[ray]\nurl = "head:8265"', "ray.url = 'head:8265': must start with h"),
        ('executor = "ray"\n[ray]\nurl = ""', "ray.url = '': must start with http:// or https://"),
        ('executor = "ray"\n[ray]\nurl = "http://["', "ray.url = 'http://[': must start with"),
        ('executor = "slurm"\n[slurm]\nurl = "unix:"', "slurm.url = 'unix:': must start with"),
        (
            'executor = "ray"\n[ray]\nurl = "unix:///run/ray.sock"',
            "ray.url = 'unix:///run/ray.sock': must start with http:// or https://",
        ),
        (
            'executor = "ray"\n[ray]\nurl = "http://head:8265"\nca_file = "/missing"',
            "ray.ca_file = '/missing': can't be read: No such file or directory",
        ),
        (
            'executor = "slurm"\n[slurm]\napi = "rest"\nurl = "http://head:6820"',
            'slurm.api = "rest" needs slurm.url and slurm.token_file',
        ),
        (
            'executor = "slurm"\n[slurm]\ntoken_file = "/missing"',
            "slurm.token_file = '/missing': can't be read: No such file or directory",
        ),
        ('executor = "slurm"\n[slurm]\napi = "grpc"', "slurm.api = 'grpc'"),
        (
            'executor = "slurm"\n[slurm]\ncontainers = "oci"',
            'slurm.containers = "oci" needs slurm.image_dir',
        ),
        ('executor = "slurm"\n[slurm]\npartion = "gpu"', "did you mean slurm.partition?"),
        ('executor = "slurm"\n[slurm]\nmax_waiting = 0', "slurm.max_waiting = 0"),
        ('executor = "slurm"\n[slurm]\ntimeout_seconds = 0', "slurm.timeout_seconds = 0"),
        (
            'executor = "kubernetes"\n[kubernetes]\nkubeconfig = "/missing"',
            "kubernetes.kubeconfig = '/missing': can't be read: No such file or directory",
        ),
        ('executor = "slrum"', "executor = 'slrum'"),
    ],
)
def test_an_error_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        load_agent_config(written(tmp_path, text))
    assert [problem for problem in raised.value.problems if message in problem]


def test_errors_of_several_tables_are_reported_together(tmp_path: Path) -> None:
    text = 'executor = "slurm"\n[slurm]\napi = "rest"\ncontainers = "oci"\n[ray]\nurl = "head"\n'
    with pytest.raises(ConfigurationError) as raised:
        load_agent_config(written(tmp_path, text))
    assert len(raised.value.problems) == 4


def test_the_tables_are_read(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    config = load_agent_config(
        written(
            tmp_path,
            'executor = "slurm"\n[slurm]\nname = "tier1"\napi = "rest"\n'
            f'url = "unix:///run/slurmrestd.sock"\ntoken_file = "{tmp_path}/token"\n',
        )
    )
    assert config.slurm == SlurmSettings(
        name="tier1",
        api="rest",
        url="unix:///run/slurmrestd.sock",
        token_file=tmp_path / "token",
    )
    text = 'executor = "ray"\n[ray]\nurl = "http://head:8265"\nheaders = {X-Proxy = "a"}'
    ray = RaySettings(url="http://head:8265", headers={"X-Proxy": "a"})
    assert load_agent_config(written(tmp_path, text)).ray == ray
    text = 'executor = "kubernetes"\n[kubernetes]\nnamespace = "acme"'
    assert load_agent_config(written(tmp_path, text)).kubernetes == KubernetesSettings(
        namespace="acme"
    )


@pytest.mark.parametrize("executor", ["slurm", "kubernetes"])
def test_a_table_may_be_left_out(tmp_path: Path, executor: str) -> None:
    assert load_agent_config(written(tmp_path, f'executor = "{executor}"')).executor == executor
