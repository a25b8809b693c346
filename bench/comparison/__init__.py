"""The side-by-side benchmark: shapes, client processes, checks, figures, and the page."""
