"""Judges of a drill: each is a function from what was seen to a list of sentences, empty if all is well."""

from chaos.drills.checkers.books import nothing_is_lost, one_verdict, store_was_protected
from chaos.drills.checkers.linear import linearizable
from chaos.drills.checkers.telling import events_tell_the_same, one_line_of_events

__all__ = [
    "events_tell_the_same",
    "linearizable",
    "nothing_is_lost",
    "one_line_of_events",
    "one_verdict",
    "store_was_protected",
]
