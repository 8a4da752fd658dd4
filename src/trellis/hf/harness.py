"""`python -m trellis.hf.harness`: lm-evaluation-harness's own command, to which folders of Trellis are models too.

Its `--model hf` loads them once Trellis is imported, which the command by itself does not do.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run `lm_eval` with the arguments of this command."""
    try:
        from lm_eval.__main__ import cli_evaluate
    except ImportError:
        sys.exit("lm-evaluation-harness is not installed: pip install 'trellis-lm[evaluation]'.")
    cli_evaluate()


if __name__ == "__main__":
    main()
