import sys
from pathlib import Path

# `bench` is not installed: it is imported from the repository, here and by the processes it starts.
sys.path.insert(0, str(Path(__file__).parents[2]))
