"""The log of events in Spark: a data source, and what can be told from it; see ``docs/spark.md``.

```py
from resourcelease.spark import local_session, register

spark = local_session()
register(spark)
spark.read.format("resourcelease").load("/var/lib/resourcelease/n1").groupBy("type").count().show()
```
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from resourcelease.spark.session import JavaMissing, SparkMissing, local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["JavaMissing", "SparkMissing", "local_session", "register"]


def register(spark: "SparkSession", *, push_filters: bool = False) -> None:
    """Makes the format ``resourcelease`` known to a session.

    What is to be left unread is said by the options of a load. With ``push_filters`` the filters of a query are pushed
    down as well; then give every query a ``load`` of its own, because Spark up to 4.3 mixes up the queries of one load.
    """
    for name in ("pyspark", "pyarrow"):
        if find_spec(name) is None:
            raise SparkMissing(name)
    from resourcelease.spark.source import EventSource, PushingSource

    # Spark refuses a source that takes filters where this is off, and asks every source in vain where it is on.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", str(push_filters).lower())
    spark.dataSource.register(PushingSource if push_filters else EventSource)
