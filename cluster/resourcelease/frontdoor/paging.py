"""Pages of a list, and tokens that say where the next one starts."""

from resourcelease.frontdoor.refusals import refuse

__all__ = ["page_size", "place_of", "token_of"]

PAGE_DEFAULT = 100
PAGE_MAX = 1000


def page_size(wanted: int) -> int:
    """How many entries a page has."""
    if not 0 <= wanted <= PAGE_MAX:
        refuse(f"must be from 0 ({PAGE_DEFAULT}) to {PAGE_MAX}, not {wanted}", "page_size")
    return wanted or PAGE_DEFAULT


def token_of(place: int) -> str:
    """The token of the page that starts behind an id."""
    return f"i{place}"


def place_of(token: str) -> int:
    """The id that a token stands behind; 0 for the first page."""
    if not token:
        return 0
    if not token.startswith("i") or not token[1:].isascii() or not token[1:].isdigit() or len(token) > 20:
        refuse("is not the next_page_token of an earlier page", "page_token")
    return int(token[1:])
