"""What any installed Trellis must do, with nothing but the standard library around it: python smoke.py VERSION.

`make package` runs it in a clean environment for each archive; a test runs it in the environment at hand.
"""

import json
import subprocess
import sys
from pathlib import Path

TEXT = "".join(f"the cat saw {thing} and then it ran\n" for thing in ("a dog", "the tree", "me") for _ in range(20))
TRAIN = ["train", "data.corpus=-", "model.states=4", "training.batch_size=4", "training.length=8", "training.lr=0.1"]


def trellis(*arguments: str, text: str = "") -> str:
    """What a command of the installed package says."""
    command = [str(Path(sys.executable).with_name("trellis")), *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def main(version: str) -> None:
    """Import, train, score and sample; fail at the first thing that is not as it should be."""
    assert trellis("--version").split() == ["trellis", version]
    trellis(*TRAIN, "training.epochs=2", "out=run", text=TEXT)
    scored = json.loads(trellis("score", "run", "--json", text="the cat saw a dog\n").splitlines()[0])
    assert scored["log_prob"] < 0, scored
    assert len(trellis("sample", "run", "--count", "3", "--seed", "1").splitlines()) == 3

    import trellis as package
    from trellis import configs, ops

    assert package.__version__ == version
    assert package.load_model("run").config.states == 4
    assert configs.shipped("ptb-low-rank")
    print(f"Python {sys.version.split()[0]}, {package.__file__}: kernels {ops.status().level}")


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except subprocess.CalledProcessError as failed:
        raise SystemExit(f"{failed}\n{failed.stdout}{failed.stderr}") from None
