"""One Spark for all tests here; without PySpark or Java they are skipped, and say so."""

import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

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


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    from resourcelease.spark import JavaMissing, local_session, register

    try:
        session = local_session("tests", cores=2, memory="1g")
    except JavaMissing as error:
        pytest.skip(str(error))
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
