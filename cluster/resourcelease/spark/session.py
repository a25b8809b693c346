"""A Spark on this machine, and what it needs to be there."""

import os
import re
import shutil
import socket
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

__all__ = ["JAVA_LEAST", "JavaMissing", "SparkMissing", "check_java", "local_session"]

JAVA_LEAST = 17


# Arrow's checks of every single value that is read of a buffer cost a tenth of a scan; the buffers are those of our own
# reader. And of the many rows of a scan none lives long: the collector that does most in little time suits it best.
_JAVA_OPTIONS = "-XX:+UseParallelGC -Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"

# What it logs: given from the start, as Spark else tells first that nothing was. (Without spaces, as an address.)
_LOG4J = Path(__file__).with_name("log4j2.properties").as_uri()

# What Java says of an option that Spark gives it, whatever is set; no option keeps it from that.
_NOT_NEWS = b"WARNING: Using incubator modules: jdk.incubator.vector"


class SparkMissing(RuntimeError):
    """A package is not installed."""

    def __init__(self, package: str) -> None:
        super().__init__(f"{package} is not installed: pip install 'resourcelease[spark]'")


class JavaMissing(RuntimeError):
    """There is no Java, or one that is too old."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"Spark needs Java {JAVA_LEAST} or newer, and {found}. Debian and Ubuntu: apt install "
            f"openjdk-{JAVA_LEAST}-jre-headless; macOS: brew install openjdk@{JAVA_LEAST}; others: "
            "https://adoptium.net. If it is installed, let JAVA_HOME name its directory"
        )


def check_java() -> int:
    """The major version of the Java that Spark would start; raises ``JavaMissing``."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        raise JavaMissing(f"there is none at JAVA_HOME, {home}" if home else "there is none on the path")
    told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr  # noqa: S603
    found = re.search(r'version "(?:1\.)?(\d+)', told)
    if found is None or int(found[1]) < JAVA_LEAST:
        raise JavaMissing(f"{java} is {'Java ' + found[1] if found else 'none'}")
    return int(found[1])


def local_session(name: str = "resourcelease", *, cores: int = 0, memory: str = "2g") -> "SparkSession":
    """A Spark that runs on this machine, quiet and without its web page; on ``cores`` cores, or on all.

    Raises ``SparkMissing`` or ``JavaMissing``, which say what to install.
    """
    for package in ("pyspark", "pyarrow"):
        if find_spec(package) is None:
            raise SparkMissing(package)
    check_java()
    # The Python that tasks run in must have this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    settings = {
        "spark.app.name": name,
        "spark.master": f"local[{cores or '*'}]",
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"{_JAVA_OPTIONS} -Dlog4j2.configurationFile={_LOG4J}",
        # All rows go from Python to Java, which costs less than through TCP. (From PySpark 4.1 on.)
        "spark.python.unix.domain.socket.enabled": str(hasattr(socket, "AF_UNIX")).lower(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(2 * (cores or os.cpu_count() or 1)),
    }
    _start_java(SparkConf().setAll(list(settings.items())))
    # Said again, for a Java that was there already.
    return SparkSession.builder.config(map=dict(settings)).getOrCreate()


def _start_java(conf: "SparkConf") -> None:
    """Starts it as Spark would, but for one line on its standard error."""
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return
    read, write = os.pipe()
    reader = Thread(target=_pass_on, args=(read,), name="java-stderr", daemon=True)
    reader.start()
    try:
        try:
            gateway = launch_gateway(conf, {"stderr": write})  # type: ignore[no-untyped-call]
        finally:
            os.close(write)
    except Exception:
        # Java is gone: what it said last is the reason. (Whoever interrupts waits for nothing: it may still be there.)
        reader.join(5.0)
        raise
    SparkContext(conf=conf, gateway=gateway)


def _pass_on(read: int) -> None:
    """All that comes, a line at a time, to standard error; until whoever writes is gone."""
    with open(read, "rb") as lines, suppress(OSError):
        for line in lines:
            if line.rstrip() != _NOT_NEWS:
                os.write(2, line)
