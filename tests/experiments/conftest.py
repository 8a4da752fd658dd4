import sys
from pathlib import Path

# `experiments` is not installed: it is imported from the repository.
sys.path.insert(0, str(Path(__file__).parents[2]))
