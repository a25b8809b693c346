"""One Spark for all tests here; without PySpark or Java they are skipped, and say so."""

import os
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sparkstory import Story, tell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Clusters of real processes are made by what is beside this directory.
sys.path.append(str(Path(__file__).parents[1]))

collect_ignore_glob: list[str] = []
MISSING = [name for name in ("pyspark", "pyarrow") if find_spec(name) is None]
if MISSING:
    collect_ignore_glob = ["test_spark_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of Spark come first: they stay with one of the processes that share the tests, and Java is started once.

    What another process takes over comes from the end of the row.
    """
    here = Path(__file__).parent
    items.sort(key=lambda item: here not in item.path.parents)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The same where these tests run alone: the second process would begin with half of them, and start a Java too.

    Only who names this directory on the command line gets this; all other runs go as they go.
    """
    if config.getvalue("dist") != "worksteal":
        return None
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    @cache
    def scope(path: Path) -> str:
        return "spark" if "SparkSession" in path.read_text(encoding="utf-8") else ""

    class OneSpark(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return scope(config.rootpath / nodeid.partition("::")[0]) or nodeid

    return OneSpark(config, log)


@pytest.fixture(scope="session")
def first_words(tmp_path_factory: pytest.TempPathFactory) -> "tuple[SparkSession, str]":
    """A Spark, and what was said on standard error while it was started."""
    from resourcelease.spark import JavaMissing, local_session

    path, kept = tmp_path_factory.mktemp("spark") / "stderr", os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        session = local_session("tests", cores=2, memory="1g")
    except JavaMissing as error:
        pytest.skip(str(error))
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    return session, path.read_text()


@pytest.fixture(scope="session")
def spark(first_words: "tuple[SparkSession, str]") -> "Iterator[SparkSession]":
    from resourcelease.spark import register

    session, _ = first_words
    # A dozen rows are sooner sorted than planned for anew, or compiled for.
    session.conf.set("spark.sql.shuffle.partitions", "1")
    session.conf.set("spark.sql.adaptive.enabled", "false")
    session.conf.set("spark.sql.codegen.wholeStage", "false")
    register(session)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """A log of a dozen steps that every test may read, and none may change."""
    return tell(tmp_path_factory.mktemp("story"))


@pytest.fixture
def copied(story: Story, tmp_path: Path) -> Path:
    """The same log, to be changed."""
    return Path(shutil.copytree(story.directory, tmp_path / "copied"))
