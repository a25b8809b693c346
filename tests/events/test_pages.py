"""The page of the command line names every command."""

import re
from pathlib import Path

from resourcelease.cli.app import COMMANDS

_PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


def test_every_command_is_on_its_page() -> None:
    told = {word for quoted in re.findall(r"`([^`\n]+)`", _PAGE) for word in quoted.split()}
    told |= set(re.findall(r"^\$ .*?resourcelease (\w+)", _PAGE, re.MULTILINE))
    assert not set(COMMANDS) - told
