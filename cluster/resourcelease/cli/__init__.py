"""The command line: ``resourcelease …``. Parts are loaded when a command needs them, so that it starts fast."""

import os
import sys
from collections.abc import Sequence

__all__ = ["main"]

# What gRPC's core has to say about connections is not meant for the person at the terminal.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command: 0 if it went well, 1 if it was refused or failed, 2 if it was used wrongly.

    >>> main(["stauts"])
    2
    """
    import click

    from resourcelease.cli.app import app

    try:
        given = list(arguments) if arguments is not None else None
        result = app.main(args=given, prog_name="resourcelease", standalone_mode=False)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "resourcelease"
        return _say(f"{error.format_message().rstrip('.')} (see {path} --help)", 2)
    except click.ClickException as error:
        return _say(error.format_message(), 1)
    except (click.Abort, KeyboardInterrupt):
        return _say("interrupted", 130)
    return result if isinstance(result, int) else 0


def _say(message: str, code: int) -> int:
    print(f"resourcelease: {' '.join(message.split())}", file=sys.stderr)
    return code
