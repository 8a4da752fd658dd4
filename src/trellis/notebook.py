"""How results show themselves in a notebook: a small table of names and figures."""

from __future__ import annotations

from html import escape


def html_table(*rows: tuple[str, str]) -> str:
    """Names and values in two columns, as HTML."""
    cells = "".join(f"<tr><th style='text-align:left'>{escape(a)}</th><td>{escape(b)}</td></tr>" for a, b in rows)
    return f"<table>{cells}</table>"
