"""What the pages show, runs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
EXAMPLES = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE))
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_runs(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(example, "example", "exec"), {"__name__": "example"})
    assert "Traceback" not in capsys.readouterr().out


def test_pages_link_to_pages_that_exist() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_make_targets_named_in_pages_exist() -> None:
    targets = re.findall(r"^([a-z-]+(?: [a-z-]+)*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    known = {name for line in targets for name in line.split()}
    for page in PAGES:
        for name in re.findall(r"`make ([a-z-]+)", page.read_text()):
            assert name in known, f"{page.name} names make {name}"
