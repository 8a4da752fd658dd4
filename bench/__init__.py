"""Trellis against its peers, and against itself at other sizes: `python -m bench`."""
