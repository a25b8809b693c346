"""The examples of ``docs/spark.md`` run, with a log of ours in the place of the one they name."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sparkstory import Story

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


def test_the_examples_run(
    spark: "SparkSession",
    story: Story,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    examples = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(examples) == 4
    monkeypatch.setattr("resourcelease.spark.local_session", lambda: spark)
    names = {"__name__": "example"}
    for example in examples:
        here = example.replace("/var/lib/resourcelease/n1", str(story.directory))
        exec(compile(here.replace("/var/lib/resourcelease", str(tmp_path)), "example", "exec"), names)
    told = capfd.readouterr().out
    assert "orders" in told
    assert told.rstrip().endswith("0")
