"""``lineage``: the history of a log as tables, run events and a report, worked out by Spark on this machine."""

from collections.abc import Sequence
from pathlib import Path

import click

from resourcelease.cli.output import Output
from resourcelease.cli.session import JSON

__all__ = ["lineage"]


@click.command()
@click.argument("paths", metavar="PATH…", nargs=-1, required=True)
@click.option("--out", required=True, metavar="DIR", type=click.Path(file_okay=False, path_type=Path),
              help="Where to write; empty, new, or of an earlier report.")  # fmt: skip
@click.option("--from", "first", default=0, metavar="N", type=click.IntRange(0), help="The first event to tell of.")
@click.option("--to", "last", default=0, metavar="N", type=click.IntRange(0), help="The last event to tell of.")
@click.option("--verify", is_flag=True, help="Check every digest on the way.")
@click.option("--cores", default=0, metavar="N", type=click.IntRange(0), help="How many cores to use.  [default: all]")
@click.option("--memory", default="2g", show_default=True, metavar="SIZE", help="How much memory Spark may take.")
@JSON
def lineage(
    paths: Sequence[str], out: Path, first: int, last: int, verify: bool, cores: int, memory: str, as_json: bool
) -> None:
    """Tell who held what, from the logs at PATH: directories of nodes, which are read as one log.

    Writes Parquet tables, openlineage.jsonl and report.html into DIR. Needs Java 17 and resourcelease[spark].
    """
    from resourcelease.spark import JavaMissing, SparkMissing, local_session
    from resourcelease.storage import StorageError

    shown = Output(as_json=as_json)
    try:
        session = local_session("resourcelease lineage", cores=cores, memory=memory)
    except (SparkMissing, JavaMissing) as error:
        raise click.ClickException(str(error)) from error
    from pyspark.errors import PySparkException

    from resourcelease.spark.lineage_job import STEPS, write_lineage

    try:
        with shown.progress("lineage", len(STEPS)) as advance:
            done = write_lineage(
                session, paths, out, first=first, last=last, verify=verify, progress=lambda step: advance(1)
            )
    except (StorageError, OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    except PySparkException as error:
        raise click.ClickException(_told(str(error))) from error
    finally:
        session.stop()
    if as_json:
        shown.data(done._asdict())
        return
    rows = [("events", done.events), ("leases", done.leases), ("items", done.items)]
    shown.table(("what", ">how many"), [*rows, ("anomalies", sum(done.anomalies.values()))])
    for kind, count in done.anomalies.items():
        shown.say(f"{count} times {kind.replace('_', ' ')}: see {out / 'report.html'}")
    shown.say(f"the report is {out / 'report.html'}")


def _told(trace: str) -> str:
    """What a task said of the log, out of all that Spark says around it."""
    for line in reversed(trace.splitlines()):
        found = line.strip().split(": ", 1)
        if found[0].startswith("resourcelease.") and len(found) == 2:
            return found[1]
    return trace.splitlines()[0] if trace else "Spark failed"
