"""`python -m trellis`, which is also how torchrun starts it."""

import os
import sys

from trellis.cli import main

code = main()
if "WORLD_SIZE" in os.environ:
    from trellis.training.distributed import leave

    leave(code)
sys.exit(code)
