"""Texts of stories15M under constraints: alone, with tokens forbidden, guided by an HMM of it, and as particles.

Every text is decoded by the transformers library and looked at by regular expressions of Python, which know nothing of
automata; its perplexity is the language model's own.
"""

from __future__ import annotations

import json
import math
import platform
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from experiments.recipes import HERE
from experiments.record import commit_of
from trellis import TrellisError
from trellis.constraints import Constraint, contains, length, matches, without
from trellis.folders import places, write_atomically
from trellis.models.hugging_face import library
from trellis.models.pretrained import load_pretrained
from trellis.progress import Progress, counted, short_time
from trellis.steering import Guide
from trellis.steering.language_models import Prompts, prompts_of

RESULTS = HERE / "results" / "steering"
TEACHER = "teachers/stories15M"
TOKENS, SEED = 48, 0
PIPE = "\\|"  # within a table
BATCHES = 20  # of a text for each constraint
HEAD = """# Guided texts

Stories15M goes on from the beginnings of stories under ten constraints, a text of up to 48 tokens each, sampled at a
temperature of one. *Met* counts the decoded texts that regular expressions of Python find to meet theirs. *Perplexity*
is the language model's own, of all tokens of the texts. *Alone* is the language model as it is; *forbidden* are only
tokens after which the automaton could not accept within the tokens left; *guided* weighs tokens by an HMM distilled
from the language model's text; *particles* draws sixteen texts together, and weighs them. `python -m experiments
steering` measures, `python -m experiments report` writes this page. *Late* is the share of keywords that first stand
in the last tenth of a text. There is one seed, and twenty texts a constraint: what sets two columns of one row a
little apart may be chance.

"""
PROMPTS = (
    "Once upon a time, there was a little girl",
    "One day, Tim and his mom",
    "The sun was bright and",
    "Lily and Ben were playing when they saw",
    "There was an old man who",
    "Sam wanted to",
    "It was a cold night.",
    "The little boy looked at his toys and",
    "Mia had a big",
    "In a small town, a cat",
    '"Look!" said Tom.',
)


class Case(NamedTuple):
    """A constraint, and whether a text of so many tokens meets it, by other means."""

    constraint: Constraint
    holds: Callable[[str, int], bool]


def _whole(word: str) -> str:
    """A word as an expression of Python's."""
    return rf"(?<!\w){word}(?!\w)"


def _word(word: str, text: str) -> bool:
    return re.search(_whole(word), text) is not None


def _keywords(*words: str) -> Case:
    return Case(contains(*words), lambda text, _: all(_word(word, text) for word in words))


PATTERN = r"[a-z ,]+\. [A-Z][a-z ,]+\. The end\."
CASES = (
    _keywords("dragon"),
    _keywords("castle"),
    _keywords("princess", "forest"),
    _keywords("ball", "rain"),
    _keywords("bird", "river", "friend"),
    _keywords("cake", "dog", "garden"),
    Case(contains("boat") & without("the"), lambda text, _: _word("boat", text) and not _word("the", text)),
    Case(without("and") & length(24, 40), lambda text, size: not _word("and", text) and 24 <= size <= 40),
    Case(matches(PATTERN), lambda text, _: re.fullmatch(PATTERN, text) is not None),
    Case(contains("happy") & length(12), lambda text, size: _word("happy", text) and size == 12),
)
METHODS: dict[str, tuple[float, int | None]] = {  # the weight of the HMM, and the number of particles
    "alone": (0.0, None),
    "forbidden": (1e-6, None),
    "guided": (1.0, None),
    "particles": (1.0, 16),
}


def steering(data_dir: str, hmm: str, batches: int = BATCHES) -> None:
    """Make and record what is missing."""
    commit = commit_of(HERE.parent)
    transformers = library("the study of guidance")
    folder = next((place for place in places(TEACHER, data_dir) if place.is_dir()), None)
    if folder is None:
        raise TrellisError(f"there is no {TEACHER} in the data folder: name another by --data-dir.")
    language_model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer, loaded = transformers.AutoTokenizer.from_pretrained(folder), load_pretrained(hmm)
    guide = Guide(
        loaded.answering("predicted"), loaded.tokenizer, [case.constraint for case in CASES], TOKENS,
        beginning=loaded.after_eos(),
    )  # fmt: skip
    about = {
        "command": "python -m experiments steering --data-dir DATA --hmm RUN",
        "seed": SEED,
        "commit": commit,
        "machine": f"{platform.machine()}, {counted(torch.get_num_threads(), 'thread')}, torch {torch.__version__}",
        "hmm": {"states": guide.hmm.config.states, "valid_perplexity": _valid_perplexity(Path(hmm))},
    }
    for name in METHODS:
        if not (RESULTS / f"{name}.json").exists():
            told = _measured(name, guide, language_model, tokenizer, batches)
            RESULTS.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"name": name} | about | told, indent=1, ensure_ascii=False)
            write_atomically(RESULTS / f"{name}.json", text + "\n")


def _valid_perplexity(run: Path) -> float | None:
    """The HMM's best on validation text, as its run noted it."""
    path = run / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    found = [json.loads(line).get("valid_perplexity") for line in lines]
    return min((one for one in found if one is not None), default=None)


def _measured(name: str, guide: Guide, language_model: Any, tokenizer: Any, batches: int) -> dict[str, Any]:
    """All batches of one method: each has every constraint once, and another prompt for each in every batch."""
    weight, particles = METHODS[name]
    guide.weight = weight
    told = {"particles": particles} if particles else {"do_sample": True, "top_k": 0}
    torch.manual_seed(SEED)
    texts, began = [], time.perf_counter()
    with Progress(name, batches, unit="batches") as progress:
        for number in range(batches):
            prompts = [PROMPTS[(number + place) % len(PROMPTS)] for place in range(len(CASES))]
            batch = prompts_of(language_model, tokenizer, prompts, guide.tokenizer)
            found = guide.generate_ids(language_model, batch, **told)
            texts += list(_looked_at(found, batch, language_model, tokenizer))
            progress.advance()
    return _summary(texts, time.perf_counter() - began)


def _looked_at(found: list[list[int]], batch: Prompts, language_model: Any, tokenizer: Any) -> Iterator[dict[str, Any]]:
    for place, (case, ids) in enumerate(zip(CASES, found, strict=True)):
        text = tokenizer.decode(ids, skip_special_tokens=True).removeprefix(" ")
        prompt = batch.ids_BT[place][batch.mask_BT[place] == 1]
        ended = len(ids) < TOKENS
        yield {
            "constraint": str(case.constraint),
            "prompt": tokenizer.decode(prompt, skip_special_tokens=True),
            "text": text,
            "met": case.holds(text, len(ids)),
            "nats": _nats(language_model, prompt, ids, batch.ends if ended else ()),
            "tokens": len(ids) + ended,
        }


@torch.no_grad()
def _nats(language_model: Any, prompt_T: Tensor, ids: list[int], ends: tuple[int, ...]) -> float:
    """−log p(ids | prompt) of the language model, and of an end by any of its tokens that end a text, if it ended."""
    whole_1T = torch.cat([prompt_T, torch.tensor(ids, dtype=torch.int64)])[None]
    log_prob_TV = language_model(whole_1T).logits[0].float().log_softmax(-1)
    begin = len(prompt_T)
    found = log_prob_TV[begin - 1 : -1].gather(1, whole_1T[0, begin:, None]).sum()
    return -float(found + (log_prob_TV[-1, list(ends)].logsumexp(0) if ends else 0.0))


def _summary(texts: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    by_constraint = {}
    for constraint in dict.fromkeys(text["constraint"] for text in texts):
        some = [text for text in texts if text["constraint"] == constraint]
        by_constraint[constraint] = {"met": sum(text["met"] for text in some), "of": len(some)} | _perplexity(some)
    overall = {"met": sum(text["met"] for text in texts), "of": len(texts), **_perplexity(texts)}
    return {**overall, "seconds": round(seconds, 1), "by_constraint": by_constraint, "texts": texts}


def _perplexity(texts: list[dict[str, Any]]) -> dict[str, Any]:
    tokens = sum(text["tokens"] for text in texts)
    return {"perplexity": round(math.exp(sum(text["nats"] for text in texts) / tokens), 3), "tokens": tokens}


def page(results: Path) -> str:
    """What is written in a folder of results, as a page; nothing where there are none."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))}
    methods = [name for name in METHODS if name in found]
    rows = ["| texts | met | perplexity | late | time |", "| --- | ---: | ---: | ---: | ---: |"]
    for name in methods:
        one = found[name]
        shown = [f"{one['met']} of {one['of']}", f"{one['perplexity']:.1f}", _late(one["texts"])]
        rows.append(f"| {name} | {' | '.join(shown)} | {short_time(one['seconds'])} |")
    each = [
        f"| constraint | {' | '.join(f'{name}: met | perplexity' for name in methods)} |",
        f"| --- |{' ---: | ---: |' * len(methods)}",
    ]
    for constraint in dict.fromkeys(key for name in methods for key in found[name]["by_constraint"]):
        cells = [found[name]["by_constraint"][constraint] for name in methods]
        figures = " | ".join(f"{cell['met']} of {cell['of']} | {cell['perplexity']:.1f}" for cell in cells)
        each.append(f"| `{constraint.replace('|', PIPE)}` | {figures} |")
    return HEAD + "\n".join([*_about(found, methods), *rows, "", "By constraint:", "", *each]) + "\n"


def _late(texts: list[dict[str, Any]]) -> str:
    """The share of keywords that stand for the first time in the last tenth of a text that meets its constraint."""
    late = []
    for one in texts:
        named = re.match(r"contains\((.*?)\)", one["constraint"])
        for word in re.findall(r"'(\w+)'", named[1]) if named and one["met"] else []:
            at = re.search(_whole(word), one["text"])
            late.append(at is not None and at.start() > 0.9 * len(one["text"]))
    return f"{sum(late) / len(late):.0%}".replace("%", " %") if late else "–"


def _about(found: dict[str, Any], methods: list[str]) -> list[str]:
    """The HMM, which decides how well guided texts read, and where times were taken."""
    if not methods:
        return []
    hmm, machine = (found[methods[0]][key] for key in ("hmm", "machine"))
    perplexity = hmm["valid_perplexity"]
    known = "" if perplexity is None else f", with a perplexity of {perplexity:.1f} on validation text"
    return [f"The HMM has {hmm['states']:,} states{known}.", f"Times are of {machine}, beside other work.", ""]
