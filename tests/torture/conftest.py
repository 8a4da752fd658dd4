import sys
from pathlib import Path

# `torture` is not installed: it is imported from the repository.
sys.path.insert(0, str(Path(__file__).parents[2]))
