"""`python -m trellis.cli`, which is also how torchrun starts it."""

import sys

from trellis.cli import main

sys.exit(main())
