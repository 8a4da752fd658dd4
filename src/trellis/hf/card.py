"""A model's card: what it is, how well it does by which protocol, and how to load it, as `README.md` beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trellis.config import run_of
from trellis.errors import TrellisError
from trellis.evaluation import PROTOCOLS
from trellis.hf.configuration import END
from trellis.json_files import parse_json
from trellis.models import storage
from trellis.models.pretrained import FITTED_FILE
from trellis.progress import counted
from trellis.training.run_folder import METRICS_FILE

if TYPE_CHECKING:
    from trellis.hf.modeling import TrellisForCausalLM

CARD_FILE = "README.md"
HEAD = "---\nlibrary_name: trellis\npipeline_tag: text-generation\n"  # begins every card of ours
NOT_KNOWN = "Not known: the model lay in no run. `trellis evaluate FOLDER CORPUS` measures it."


def ours(path: Path) -> bool:
    """Whether a card was written here, and not by people."""
    return path.read_text(encoding="utf-8", errors="replace").startswith(HEAD)


def figures_of(folder: Path) -> dict[str, str]:
    """What the run that a model lies in, or the fit that made it, knows of how well it does."""
    if (folder / FITTED_FILE).exists():
        about = storage.read_json(folder / FITTED_FILE)
        named = {"validation perplexity": about.get("perplexity"), "of a unigram there": about.get("unigram")}
        return {name: f"{value:,.2f}" for name, value in named.items() if isinstance(value, int | float)}
    try:
        config = run_of(folder)
    except TrellisError:  # no run, or settings of another version: the model is as good without its figures
        return {}
    batching = config.training.batching or "streams"  # a run's own settings leave nothing open
    figures = {"text": str(config.data.corpus), "learnt as": str(batching)}
    best = min(_validations(folder.parent / METRICS_FILE), default=None)
    protocol = PROTOCOLS[batching][0].format(rows=PROTOCOLS[batching][2])
    return figures if best is None else figures | {"validation perplexity": f"{best:,.2f}", "protocol": protocol}


def _validations(path: Path) -> list[float]:
    """All validation perplexities of a run."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            found.append(float(parse_json(line, infinite=True)["valid_perplexity"]))
        except (ValueError, KeyError, TypeError):  # another kind of line, or one cut short
            continue
    return found


def card(model: TrellisForCausalLM) -> str:
    """The card of a model, in the form that the hub reads."""
    figures = "\n".join(f"- {name}: {value}" for name, value in (model.config.figures or {}).items()) or NOT_KNOWN
    after = "as after `<eos>` in running text" if model.config.begins == END else "at the start distribution"
    begins = f"A leading token {model.config.bos_token_id} says that a text begins, {after}." if model.marked else ""
    return f"""{HEAD}tags:
- trellis
- hidden-markov-model
---

# {type(model.model).__name__}: {counted(model.config.vocab_size, "word")}

A language model of Trellis, kind `{model.model.config.kind}`:

{chr(10).join(f"- {part}" for part in model.model.described())}

## Figures

{figures}

Perplexities are a token, with `<eos>` and `<unk>` counted.

## Use

```python
import trellis  # which tells transformers of its models
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder)  # logits are exact log-probabilities
model = trellis.load_model(folder)  # or with posteriors, paths, gaps and all else that Trellis answers
```

{begins}
"""
