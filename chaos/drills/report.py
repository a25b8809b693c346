"""The page of a run: one HTML file that needs nothing else, from which a person can read each drill's story."""

from collections.abc import Iterable
from html import escape
from pathlib import Path

from chaos.drills.outcome import Outcome
from chaos.drills.picture import picture

__all__ = ["write_report"]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 64em; padding: 0 1em; color: #222; }
h1 { font-size: 1.5em } h2 { font-size: 1.2em; margin: 2.2em 0 .2em; border-top: 1px solid #ddd; padding-top: 1em }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; padding: .2em .8em .2em 0; font-size: 14px }
th { border-bottom: 1px solid #999; font-weight: 600 } td.n, th.n { text-align: right }
.ok { color: #1a7f37 } .FAILED { color: #b42318; font-weight: 700 } .skipped { color: #777 }
pre { background: #f5f5f5; padding: .6em; white-space: pre-wrap; font-size: 12px } svg { width: 100%; height: auto }
p.holds { margin: 0 0 .6em; color: #555 } a { color: inherit }
"""


def write_report(path: Path, outcomes: Iterable[Outcome], setting: str) -> None:
    """Writes the page."""
    outcomes = list(outcomes)
    failed = sum(bool(outcome.problems) for outcome in outcomes)
    title = f"{len(outcomes)} drills on {setting}: {'all passed' if not failed else f'{failed} failed'}"
    body = [
        f"<h1>{escape(title)}</h1>",
        _table(outcomes),
        *(_section(outcome) for outcome in outcomes if not outcome.skipped),
    ]
    page = f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title><style>{_STYLE}</style>"
    path.write_text(page + "\n".join(body) + "</html>\n", encoding="utf-8")


def _table(outcomes: list[Outcome]) -> str:
    heads = "<th>drill<th>verdict<th class=n>faults<th class=n>calls<th class=n>unknown<th class=n>slowest recovery"
    rows = []
    for outcome in outcomes:
        slowest = outcome.slowest
        back = f"{slowest.took:.1f} of {slowest.limit:g} s" if slowest else outcome.skipped
        unknown = sum(call.unknown for call in outcome.calls)
        rows.append(
            f"<tr><td><a href='#{outcome.name}'>{outcome.name}</a><td class={outcome.word}>{outcome.word}"
            f"<td class=n>{len(outcome.faults)}<td class=n>{len(outcome.calls):,}<td class=n>{unknown:,}"
            f"<td class=n>{escape(back)}"
        )
    return f"<table><tr>{heads}{''.join(rows)}</table>"


def _section(outcome: Outcome) -> str:
    parts = [
        f"<h2 id='{outcome.name}'>{outcome.name} <span class={outcome.word}>{outcome.word}</span></h2>",
        f"<p class=holds>Must hold: {escape(outcome.holds)}.</p>",
    ]
    if outcome.problems:
        parts.append(f"<pre>{escape(chr(10).join([*outcome.problems, '', 'again: ' + outcome.again]))}</pre>")
    parts.append(picture(outcome))
    parts.append(_story(outcome))
    return "\n".join(parts)


def _story(outcome: Outcome) -> str:
    """What was done and how long it took to get over it."""
    rows = [
        f"<tr><td class=n>{fault.start:.1f} s<td>{escape(fault.words)}<td class=n>"
        + (f"{fault.end - fault.start:.1f} s" if fault.end is not None else "")
        for fault in outcome.faults
    ]
    rows += [
        f"<tr><td class=n><td>service after {escape(back.what)}<td class=n>{back.took:.2f} of {back.limit:g} s"
        for back in outcome.recoveries
    ]
    rows += [f"<tr><td class=n><td>{escape(note)}<td>" for note in outcome.notes]
    rows += [f"<tr><td class=n><td>{escape(name)}<td class=n>{value:,.6g}" for name, value in outcome.counts.items()]
    for name, (before, after) in outcome.usage.items():
        was = f"{before.resident_mib:.0f} to " if before else ""
        rows.append(f"<tr><td><td>{name}: {was}{after.resident_mib:.0f} MiB, {after.files} files<td>")
    return f"<table><tr><th class=n>at<th>what<th class=n>for{''.join(rows)}</table>"
