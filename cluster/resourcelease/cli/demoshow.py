"""The demo as people see it: live on a terminal, a line a second elsewhere."""

import time
from collections import deque
from typing import Any

__all__ = ["Show"]

RECENT = 5


class Show:
    """What is going on: facts that change, and the story so far."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self.console = Console(width=None if Console().is_terminal else 160)
        self.started = time.monotonic()
        self.facts: dict[str, Any] = {}
        self.nodes: dict[str, str] = {}
        self.story: list[str] = []
        self._rates: deque[int] = deque(maxlen=60)
        self._said = 0.0
        self._live = Live(console=self.console, refresh_per_second=8, transient=True, get_renderable=self._picture)

    def __enter__(self) -> "Show":
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self._live.stop()

    def tell(self, text: str, style: str = "") -> None:
        """Something happened."""
        line = f"{time.monotonic() - self.started:5.1f} s  {text}"
        self.story.append(line)
        self.console.print(line, style=style or None, highlight=False)

    def measure(self, rate: int) -> None:
        """Items a second, now."""
        self._rates.append(rate)
        self.facts["rate"] = rate
        if not self.console.is_terminal and time.monotonic() - self._said >= 1.0:
            self._said = time.monotonic()
            words = "  ".join(f"{name} {value}" for name, value in self.facts.items())
            self.console.print(f"{time.monotonic() - self.started:5.1f} s    {words}", highlight=False)

    def closing(self, rows: list[tuple[str, str, bool]]) -> None:
        """The table at the end: what, how much, and whether that is good."""
        from rich import box
        from rich.table import Table

        table = Table(box=box.ROUNDED, show_header=False, title="what came of it")
        table.add_column()
        table.add_column(justify="right")
        for name, value, good in rows:
            table.add_row(name, value, style=None if good else "bold red")
        self.console.print(table)

    def _picture(self) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        nodes = Table.grid(padding=(0, 3))
        for name, state in self.nodes.items():
            style = {"leads": "bold green", "follows": "green"}.get(state, "bold red")
            nodes.add_row(Text(f"  {name}"), Text(state, style=style))
        facts = Table.grid(padding=(0, 2))
        for name, value in self.facts.items():
            facts.add_row(Text(f"  {name}", style="dim"), Text(f"{value:,}" if isinstance(value, int) else str(value)))
        return Group(Text(), nodes, facts, Text(f"  {self._curve()}", style="cyan"))

    def _curve(self) -> str:
        most = max(self._rates, default=0) or 1
        return "".join(" ▁▂▃▄▅▆▇█"[min(8, rate * 8 // most)] for rate in self._rates)
