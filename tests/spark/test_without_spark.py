"""What is said where Spark, or the Java that it runs on, is not there."""

import os
import stat
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from resourcelease.cli import main
from resourcelease.spark import JavaMissing, SparkMissing, local_session
from resourcelease.spark import session as made
from resourcelease.spark.session import check_java


@pytest.mark.parametrize("package", ["pyspark", "pyarrow"])
def test_the_tests_of_spark_have_what_they_need(package: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed, so tests/spark/test_spark_* are left out: pip install -e '.[spark]'")


def test_no_java_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match=r"Java 17 or newer.*apt install openjdk-17"):
        check_java()


@pytest.mark.parametrize(("told", "major"), [('openjdk version "17.0.1"', 17), ('version "21"', 21)])
def test_a_java_that_is_new_enough_is_taken(
    told: str, major: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java(tmp_path, told)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert check_java() == major


@pytest.mark.parametrize("told", ['version "11.0.2"', 'version "1.8.0_402"', "what?"])
def test_a_java_that_is_too_old_is_not(told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java(tmp_path, told)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match="needs Java 17"):
        check_java()


def java(home: Path, told: str) -> None:
    path = home / "bin" / "java"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\necho '{told}' >&2\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_no_pyspark_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(made, "find_spec", lambda name: None)
    with pytest.raises(SparkMissing, match=r"pip install 'resourcelease\[spark\]'"):
        local_session()
    assert main(["lineage", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    assert "pip install 'resourcelease[spark]'" in capsys.readouterr().err


def test_of_what_java_says_one_line_is_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    read, write = os.pipe()
    said = b"WARNING: Using incubator modules: jdk.incubator.vector\nWARNING: Using incubator modules: other\nno room"
    os.write(write, said)
    os.close(write)
    made._pass_on(read)
    assert capfd.readouterr().err == "WARNING: Using incubator modules: other\nno room"


def test_who_interrupts_while_java_starts_does_not_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    from pyspark import SparkConf, SparkContext, java_gateway

    held: list[int] = []

    def interrupted(conf: Any, kwargs: dict[str, int]) -> None:
        # The Java that starts goes on with its end of the pipe.
        held.append(os.dup(kwargs["stderr"]))
        raise KeyboardInterrupt

    class Reader(Thread):
        def join(self, timeout: float | None = None) -> None:
            raise AssertionError("it is waited for")

    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(java_gateway, "launch_gateway", interrupted)
    monkeypatch.setattr(made, "Thread", Reader)
    try:
        with pytest.raises(KeyboardInterrupt):
            made._start_java(SparkConf(loadDefaults=False))
    finally:
        for end in held:
            os.close(end)


# PySpark leaves the pipe to a Java that did not start for the collector to close.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_last_words_of_a_java_that_does_not_start_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyspark")
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError

    submit = tmp_path / "bin" / "spark-submit"
    submit.parent.mkdir()
    submit.write_text("#!/bin/sh\necho 'there is no memory' >&2\nexit 1\n")
    submit.chmod(submit.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.setattr(SparkContext, "_gateway", None)
    with pytest.raises(PySparkRuntimeError):
        made._start_java(SparkConf(loadDefaults=False))
    assert capfd.readouterr().err == "there is no memory\n"
