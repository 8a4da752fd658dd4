"""Folders that Trellis and transformers both read: weights, configuration, tokenizer, and a card for people."""

from __future__ import annotations

import tempfile
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from trellis.beginnings import beginning
from trellis.errors import TrellisError
from trellis.folders import disk_trouble
from trellis.hf.card import CARD_FILE, card, figures_of, ours
from trellis.hf.configuration import END, NESTED, OURS, START, TrellisConfig
from trellis.json_files import write_json
from trellis.manifests import MANIFEST, write_manifest
from trellis.models import Model, storage
from trellis.models.pretrained import Pretrained, load_pretrained
from trellis.models.registry import config_class, load_model, model_class
from trellis.settings import build
from trellis.text import Tokenizer
from trellis.text.tokenizer import CONFIG_FILE as TOKENIZER_CONFIG
from trellis.text.tokenizer import TOKENIZER_FILE, read_config

if TYPE_CHECKING:
    from trellis.hf.modeling import TrellisForCausalLM

CONFIG_FILE = "config.json"
TOKENIZER_FILES = (TOKENIZER_FILE, TOKENIZER_CONFIG)
BOOKKEEPING = ("model_type", "format", "tokenizer", storage.CHECKSUM)  # of Trellis's entry, what is no setting
HUB = ("revision", "cache_dir", "token", "local_files_only", "force_download")  # which files of a repository are meant
CHANGED = ("quantization_config", "load_in_8bit", "load_in_4bit", "gguf_file", "state_dict")  # other numbers than saved
PRECISIONS = (torch.float32, torch.float64)


class Found(NamedTuple):
    """A model as it lies on disk, with its tokenizer, if it has one."""

    folder: Path
    model: Model
    tokenizer: Tokenizer | None


def fresh(config: TrellisConfig) -> Model:
    """A model of this shape with weights of its own; one whose tables are counted cannot be made so."""
    if not config.trellis:
        raise TrellisError("this configuration describes no Trellis model: read one with AutoConfig.from_pretrained.")
    kind = type(config).model_type.removeprefix(OURS)
    known = {name: value for name, value in config.trellis.items() if name not in BOOKKEEPING}
    if kind == "kneser_ney":
        raise TrellisError("an n-gram model is counted and has no weights of its own: read one with from_pretrained.")
    return model_class(kind)(build(config_class(kind), known))


def read(name: str | PathLike[str], options: dict[str, Any]) -> Found:
    """The model of this name, where and in the precision that transformers' options say."""
    for option in CHANGED:
        if options.get(option):
            raise TrellisError(f"a Trellis model is read as it was saved: leave {option} out.")
    folder = storage.model_folder(_folder(name, options))
    tokenizer: Tokenizer | None = None
    if (folder / TOKENIZER_FILE).exists():
        _, model, tokenizer = load_pretrained(folder)
    else:
        model = load_model(folder)
    model = model.to(_device(options.get("device_map")), _precision(options))
    return Found(folder, model, tokenizer)


def _folder(name: str | PathLike[str], options: dict[str, Any]) -> Path:
    """A folder of this name, or else such a repository of the hub, in the cache of the hub's library."""
    within = options.get("subfolder") or ""
    if Path(name).is_dir():
        return Path(name) / within
    from huggingface_hub import snapshot_download

    asked = {option: options[option] for option in HUB if options.get(option) is not None}
    return Path(snapshot_download(str(name), **asked)) / within


def _precision(options: dict[str, Any]) -> torch.dtype | None:
    """That of the weights as they were saved, unless another one is asked for."""
    asked = options.get("dtype") or options.get("torch_dtype")
    asked = getattr(torch, asked, asked) if isinstance(asked, str) else asked
    if asked in (None, "auto"):
        return None
    if asked not in PRECISIONS:
        raise TrellisError(
            f"probabilities are not computed in {asked}: leave dtype out, or ask for float32 or float64."
        )
    return asked  # type: ignore[no-any-return]  # one of those above


def _device(device_map: Any) -> torch.device | None:
    """Where the whole model goes."""
    if isinstance(device_map, dict):
        if len(set(map(str, device_map.values()))) > 1:
            raise TrellisError("a Trellis model is in one place: give device_map one device.")
        device_map = next(iter(device_map.values()), None)
    if device_map is None:
        return None
    if device_map in ("auto", "balanced", "balanced_low_0", "sequential"):
        from trellis.training.device import choose_device

        return choose_device("auto")
    return torch.device(device_map)


def completed(config: TrellisConfig, found: Found) -> TrellisConfig:
    """The configuration with what the folder's tokenizer and its run say, where it does not say so itself."""
    config.trellis = storage.read_about(found.folder)
    config.vocab_size = found.model.config.vocab_size
    config.architectures = [f"{type(config).__name__.removesuffix('Config')}ForCausalLM"]
    config.figures = config.figures or figures_of(found.folder) or None
    if found.tokenizer is not None:
        _complete_tokens(config, found.folder, found.tokenizer)
        if config.begins is None:
            loaded = Pretrained(found.folder, found.model, found.tokenizer)
            config.begins = START if beginning(loaded, None) is None else END
    config.begins = config.begins or START
    if config.begins not in (START, END):
        raise TrellisError(f"a text cannot begin by {config.begins!r}: set begins to {START} or {END}.")
    return config


def _complete_tokens(config: TrellisConfig, folder: Path, tokenizer: Tokenizer) -> None:
    """The ends of texts, the mark of their beginnings, and padding, by the tokenizer."""
    if config.eos_token_id is None:
        config.eos_token_id = tokenizer.eos_id
    if config.bos_token_id is None:
        named = read_config(folder).get("bos_token")
        spelt = named.get("content") if isinstance(named, dict) else named
        config.bos_token_id = tokenizer.id(spelt) if isinstance(spelt, str) else config.eos_token_id
    if config.pad_token_id is None:
        config.pad_token_id = config.eos_token_id


def write(model: TrellisForCausalLM, folder: str | PathLike[str]) -> dict[str, Any]:
    """Write every file whole, the manifest last: by it, weights and configuration of different times are told apart."""
    folder = Path(folder)
    with disk_trouble(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", suffix=".partial", dir=folder) as name:
            about = _write_all(model, Path(name))
            if (folder / CARD_FILE).exists() and not ours(folder / CARD_FILE):
                (Path(name) / CARD_FILE).unlink()  # what people wrote themselves stays
            for path in sorted(Path(name).iterdir(), key=lambda path: path.name == MANIFEST):
                path.replace(folder / path.name)
    return about


def _write_all(model: TrellisForCausalLM, folder: Path) -> dict[str, Any]:
    storage.write(model.model, folder, model.tokenizer)
    own = storage.read_about(folder)
    about: dict[str, Any] = {**model.config.to_diff_dict(), NESTED: own}
    write_json(folder / CONFIG_FILE, about)
    write_manifest(folder, leaving_out=TOKENIZER_FILES)  # which tokenizers of transformers write there themselves
    model.generation_config.save_pretrained(folder)
    (folder / CARD_FILE).write_text(card(model), encoding="utf-8")
    return about
