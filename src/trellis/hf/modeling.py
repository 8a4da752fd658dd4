"""`TrellisForCausalLM`: a Trellis model with the interface that transformers gives to causal language models."""

from __future__ import annotations

from os import PathLike
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from trellis.errors import InputError, TrellisError
from trellis.hf import files
from trellis.hf.cache import CarriedState
from trellis.hf.configuration import CONFIGURATIONS, END, NESTED, TrellisConfig
from trellis.hf.losses import causal_loss, counted_labels
from trellis.hf.prediction import Rows, not_begun, predictions
from trellis.models import Model
from trellis.text import Tokenizer


class TrellisForCausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[misc]  # types are not followed
    """A Trellis model, whose logits are the exact log p(next token | tokens so far) at each place.

    The cache is the state that the model carries, so that a step of `generate` costs the same however long the text is.
    Tokens that the attention mask leaves out are not there: they touch neither the state nor any prediction.
    """

    config_class: ClassVar[type[TrellisConfig]] = TrellisConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _is_stateful = True  # a state cannot be taken back by some tokens, as assisted generation would
    _no_split_modules: ClassVar[list[str]] = []

    def __init__(self, config: TrellisConfig, model: Model | None = None, tokenizer: Tokenizer | None = None) -> None:
        super().__init__(config)
        self.model = files.fresh(config) if model is None else model
        self.tokenizer = tokenizer  # is saved with the model
        self.post_init()

    def _init_weights(self, module: torch.nn.Module) -> None:
        """Nothing: the model has drawn its own."""

    @property
    def device(self) -> torch.device:
        """Where the numbers live, also those of a model without parameters."""
        return self.model.device

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def _reorder_cache(self, past_key_values: CarriedState, beam_idx: Tensor) -> CarriedState:
        return past_key_values.rows(beam_idx)

    def get_input_embeddings(self) -> torch.nn.Module:
        """Refuse: an HMM's tokens are looked up in tables of emissions, and have no vectors on their way in."""
        raise NotImplementedError("a model of Trellis reads tokens by their ids, and has no input embeddings.")

    def get_output_embeddings(self) -> None:
        """None, which transformers takes for an answer."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: CarriedState | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
        continuing: bool = False,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Predict what follows each place; logits are log-probabilities, and carry no gradient.

        The loss does: it is −log p of the labels a token, the first place left out, which is what transformers' own
        makes of these logits. Labels are the text itself, −100 where they do not count. While it learns (`train()`,
        with labels) no logits are made. `logits_to_keep` asks for those of the last places alone, or of given ones.
        `continuing` refuses a text that is impossible, which nothing can follow.
        """
        ids_BT, there_BT = self._given(input_ids, attention_mask, kwargs)
        before = past_key_values or self._nothing_yet(len(ids_BT))
        marks_BT = _first(there_BT) & ~before.begun_B[:, None] & (ids_BT == self._mark)
        ids_BT, reads_BT = self._without_marks(ids_BT, there_BT, marks_BT)
        rows = Rows.of(ids_BT, reads_BT)
        loss = logits = None
        if labels is not None:
            counts_BT = counted_labels(labels.to(ids_BT.device), ids_BT, there_BT & ~marks_BT)
            loss = causal_loss(self.model, rows, before.state, counts_BT, kwargs.get("num_items_in_batch"))
        state = before.state
        if labels is None or not self.training:
            logits, state = predictions(self.model, rows, state, _places(ids_BT, logits_to_keep))
        if continuing and logits is not None:
            _refuse_impossible(logits)
        begun_B = before.begun_B | there_BT.any(1)
        carried = CarriedState(state, begun_B, before.seen + ids_BT.shape[1]) if use_cache in (None, True) else None
        output = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=None if logits is None else carried)
        return output.to_tuple() if return_dict is False else output

    def prepare_inputs_for_generation(self, input_ids: Tensor, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As of any model; a prompt that the model gives no probability is refused."""
        inputs: dict[str, Any] = super().prepare_inputs_for_generation(input_ids, *args, **kwargs)
        return inputs | {"continuing": bool(kwargs.get("is_first_iteration"))}

    @property
    def marked(self) -> bool:
        """Whether there is a token that says that a text begins."""
        return self._mark >= 0

    @property
    def _mark(self) -> int:
        """The token that says that a text begins; −1 if there is none."""
        mark = self.config.bos_token_id
        return -1 if mark is None or (self.config.begins == END and self.config.eos_token_id is None) else int(mark)

    def _given(self, input_ids: Any, attention_mask: Any, more: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """The tokens, and which of them are there."""
        if input_ids is None or more.get("inputs_embeds") is not None:
            raise InputError("a Trellis model reads tokens and no embeddings: give input_ids.")
        if not isinstance(input_ids, Tensor) or input_ids.dim() != 2:
            raise InputError("input_ids are a tensor of rows of tokens: use tokenizer(texts, return_tensors='pt').")
        ids_BT = input_ids.to(self.model.device).long()
        if attention_mask is None:
            return ids_BT, torch.ones_like(ids_BT, dtype=torch.bool)
        time = ids_BT.shape[1]
        if attention_mask.dim() != 2 or len(attention_mask) != len(ids_BT) or attention_mask.shape[1] < time:
            raise InputError(
                f"an attention mask of shape {tuple(attention_mask.shape)} does not fit tokens of "
                f"{tuple(ids_BT.shape)}: give one number a token, 0 where it is padding."
            )
        return ids_BT, attention_mask[:, attention_mask.shape[1] - time :].to(ids_BT.device).bool()

    def _nothing_yet(self, rows: int) -> CarriedState:
        state = not_begun(self.model, rows)
        return CarriedState(state.detach(), torch.zeros(rows, dtype=torch.bool, device=state.device), 0)

    def _without_marks(self, ids_BT: Tensor, there_BT: Tensor, marks_BT: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens with marks of a beginning read as the model learnt, and which are read at all."""
        if self.config.begins == END:
            return ids_BT.masked_fill(marks_BT, self.config.eos_token_id or 0), there_BT
        return ids_BT, there_BT & ~marks_BT

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | PathLike[str], *args: Any, **kwargs: Any) -> Self:
        """Read a folder that Trellis or `save_pretrained` wrote, or such a repository of the hub, ready for use.

        Of transformers' options, those that say which files, `dtype`, `device_map` and `output_loading_info` count; and
        `begins`, if texts shall begin in another way than the model learnt (`TrellisConfig`).
        """
        config = kwargs.pop("config", None)
        found = files.read(pretrained_model_name_or_path, kwargs)
        if not isinstance(config, TrellisConfig):
            config = cls.config_class.from_pretrained(found.folder, begins=kwargs.get("begins"))
        model = cls(files.completed(config, found), found.model, found.tokenizer)
        model.config._name_or_path = model.name_or_path = str(pretrained_model_name_or_path)
        model.eval()
        nothing: dict[str, list[str]] = {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": []}
        return (model, nothing) if kwargs.get("output_loading_info") else model  # type: ignore[return-value]  # theirs

    def save_pretrained(
        self,
        save_directory: str | PathLike[str],
        is_main_process: bool = True,
        push_to_hub: bool = False,
        **kwargs: Any,
    ) -> None:
        """Write a folder that Trellis and transformers load, with the tokenizer and a card, `README.md`.

        Files of other names that stand there stay. Weights are always one file of safetensors.
        """
        if push_to_hub:
            raise TrellisError("save_pretrained writes to a folder: call push_to_hub with the name of a repository.")
        if kwargs.get("state_dict") is not None:
            self.load_state_dict(kwargs["state_dict"])
        if is_main_process:
            self.config.trellis = files.write(self, save_directory)[NESTED]

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args: Any, **kwargs: Any) -> None:
        """Refuse: each state's words have probabilities that sum to one."""
        if new_num_tokens not in (None, self.config.vocab_size):
            raise TrellisError("the vocabulary of a Trellis model is fixed: train one with another tokenizer.")


def _first(there_BT: Tensor) -> Tensor:
    """Where the first token of each row stands."""
    return there_BT & (there_BT.cumsum(1) == 1)


def _places(ids_BT: Tensor, logits_to_keep: int | Tensor) -> Tensor:
    """The places whose predictions are wanted."""
    everywhere_T = torch.arange(ids_BT.shape[1], device=ids_BT.device)
    if isinstance(logits_to_keep, Tensor):
        return everywhere_T[logits_to_keep.to(ids_BT.device)]
    return everywhere_T[-logits_to_keep:] if logits_to_keep else everywhere_T


def _refuse_impossible(logits_BKV: Tensor) -> None:
    """Refuse to go on from a text of which nothing is known: no distribution has a probability of one for each word."""
    if bool((logits_BKV[:, -1] == 0).all(-1).any()):
        raise TrellisError("the model gives the prompt no probability, so nothing can follow it: change the prompt.")


def _of_kind(configuration: type[TrellisConfig]) -> type[TrellisForCausalLM]:
    """The model of one kind: transformers has one class a configuration."""
    if configuration is TrellisConfig:
        return TrellisForCausalLM
    name = configuration.__name__.removesuffix("Config") + "ForCausalLM"
    return type(name, (TrellisForCausalLM,), {"config_class": configuration, "__module__": __name__})


MODELS = tuple(map(_of_kind, CONFIGURATIONS))
