"""docs/configuration.md is made from the model of the configuration."""

from kworker.config.reference import PAGE, all_references, as_markdown
from tests.unit.docs.pages import ROOT


def test_the_page_is_what_the_command_prints() -> None:
    """If this is red: kworker config keys --markdown > docs/configuration.md"""
    assert (ROOT / PAGE).read_text() == as_markdown(all_references())
