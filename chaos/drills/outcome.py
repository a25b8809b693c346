"""What became of one drill: everything the report and the verdict are made from."""

from dataclasses import dataclass, field

from chaos.drills.follow import Told
from chaos.drills.history import OK, Call
from chaos.drills.scene import Fault, Recovery
from chaos.drills.watch import Look, Usage

__all__ = ["Outcome"]


@dataclass(slots=True)
class Outcome:
    """A drill that was played. No problems: it has passed."""

    name: str
    holds: str
    seed: int
    nodes: int
    problems: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    told: Told = field(default_factory=Told)
    usage: dict[str, tuple[Usage | None, Usage]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    counts: dict[str, float] = field(default_factory=dict)
    expected_words: list[str] = field(default_factory=list)
    skipped: str = ""
    # It was the drill that went wrong, and not what it looked at.
    stumbled: bool = False
    # When the last fault had been played, in seconds of the drill.
    acted_s: float = 0.0
    took_s: float = 0.0
    # For how long of it the drill's own loop was ready to go on and had no processor: how busy the machine was.
    waited_s: float = 0.0
    again: str = ""

    @property
    def passed(self) -> bool:
        """Whether all promises held."""
        return not self.problems and not self.skipped

    @property
    def word(self) -> str:
        """The verdict in a word."""
        return "skipped" if self.skipped else "ok" if self.passed else "FAILED"

    @property
    def acknowledged(self) -> int:
        """Calls that were answered with a yes."""
        return sum(1 for call in self.calls if call.outcome == OK)

    @property
    def slowest(self) -> Recovery | None:
        """The longest recovery from a fault."""
        return max(self.recoveries[1:], key=lambda recovery: recovery.took, default=None)
