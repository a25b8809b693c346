"""The same drills again and again, until each has passed so many times in a row."""

from collections.abc import Callable, Sequence

from chaos.drills.ledger import Ledger, Run, Terms, in_a_row, summary
from chaos.drills.outcome import Outcome

__all__ = ["campaign"]

# Plays one drill once, with a seed.
Play = Callable[[Terms, int], Outcome]


def campaign(
    drills: Sequence[Terms],
    play: Play,
    ledger: Ledger,
    *,
    times: int,
    seed: int,
    stop: bool,
    tell: Callable[[str], None] = print,
) -> int:
    """Plays each drill as often as it still lacks of ``times`` passes in a row; 0 if none lacks any in the end.

    Round by round, so that what is known after half of the time is known of all of them. A failure makes a drill begin
    to count anew, and does not make it be played more often this time; ``stop`` ends everything at the first. So does a
    drill that goes wrong itself: the book would be filled with failures that tell nothing of the cluster.
    """
    wanted = {terms: max(0, times - in_a_row(ledger.under(terms))) for terms in drills}
    try:
        while any(wanted.values()):
            for terms in [terms for terms, left in wanted.items() if left]:
                wanted[terms] -= 1
                outcome = play(terms, seed + len(ledger.under(terms)))
                if outcome.skipped:
                    del wanted[terms]
                    continue
                ledger.add(Run.of(terms, outcome))
                if outcome.stumbled:
                    tell("a drill has stumbled over itself: there is no use in going on")
                    return 1
                if stop and outcome.problems:
                    return 1
    except KeyboardInterrupt:
        tell("interrupted")
        return 1
    finally:
        tell("\n" + "\n".join(summary(ledger, wanted)))
    return 0 if all(in_a_row(ledger.under(terms)) >= times for terms in wanted) else 1
