"""A saved model's `config.json` as transformers reads it: what Trellis wrote is one entry of it."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from transformers.configuration_utils import PreTrainedConfig

KINDS = ("hmm", "kneser_ney", "feed_forward", "lstm", "awd_lstm", "hmm_rnn")  # whose folders have a model_type of ours
OURS, NESTED = "trellis_", "trellis"  # as in `models.storage`, which cannot be imported without PyTorch
START, END = "start", "eos"  # how a text begins: at the start distribution, or as after `<eos>`


class TrellisConfig(PreTrainedConfig):  # type: ignore[misc]  # the library's types are not followed
    """The shape of a Trellis model, and how its texts begin and end.

    A leading `bos_token_id` is a mark and not text. It says that a text begins, and is read as `begins` has it: "eos",
    as `<eos>`, after which sentences begin in running text, or "start", as nothing. Without the mark, a text begins at
    the start distribution, as in `model.score`.
    """

    model_type: ClassVar[str] = OURS + KINDS[0]
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    trellis: dict[str, Any] | None = None  # all that Trellis itself writes of a model
    vocab_size: int = 0
    begins: str | None = None  # "start" or "eos"; None, until a model is loaded: as it learnt
    bos_token_id: int | None = None  # by default the tokenizer's, or else the same as eos
    eos_token_id: int | None = None  # by default the tokenizer's
    pad_token_id: int | None = None  # by default the same as eos
    figures: dict[str, str] | None = None  # how well the model does, as its run knew

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        register_models()

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Self:
        """Read a `config.json` that Trellis wrote for itself, or one of `TrellisForCausalLM.save_pretrained`."""
        nested = config_dict.get(NESTED)
        if not isinstance(nested, dict):
            nested, config_dict = config_dict, {}
        config_dict = {"vocab_size": nested.get("vocab_size", 0), **config_dict, NESTED: dict(nested)}
        found: Self = super().from_dict(config_dict, **kwargs)
        return found


def _of_kind(kind: str) -> type[TrellisConfig]:
    """The configuration of one kind: the table of transformers has one class a model_type."""
    if kind == KINDS[0]:
        return TrellisConfig
    name = "".join(part.capitalize() for part in kind.split("_"))
    return type(f"Trellis{name}Config", (TrellisConfig,), {"model_type": OURS + kind, "__module__": __name__})


CONFIGURATIONS = tuple(map(_of_kind, KINDS))


def register_configurations() -> None:
    """Tell `AutoConfig` of every kind; whose module, when it is imported, may have this one imported in turn."""
    from transformers.models.auto.configuration_auto import AutoConfig

    for configuration in CONFIGURATIONS:
        AutoConfig.register(configuration.model_type, configuration, exist_ok=True)


def register_models() -> None:
    """Tell `AutoModelForCausalLM` of every kind."""
    from transformers import AutoModelForCausalLM

    from trellis.hf.modeling import MODELS

    for configuration, model in zip(CONFIGURATIONS, MODELS, strict=True):
        AutoModelForCausalLM.register(configuration, model, exist_ok=True)
