"""What every setting means, read from where it is defined: the comment beside a field is its documentation."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import json
import textwrap
import tokenize
from collections.abc import Iterator
from typing import Any, NamedTuple

from trellis.config import RunConfig
from trellis.distillation.settings import DistillSettings, SampledSettings
from trellis.models.registry import DEFAULT, KINDS, config_class
from trellis.text.sources import DataSettings
from trellis.training.settings import TrainingSettings

FOUND = ("vocab_size", "architecture")  # in a model's configuration: by the tokenizer, and in the network's folder


class Setting(NamedTuple):
    """One setting: its dotted name, what it may be, its default as YAML writes it, and what it means."""

    name: str
    kind: str
    default: str
    meaning: str


def every_setting() -> list[Setting]:
    """Every setting of a run, those of all kinds of models included; a kind's own are named model(kind).name."""
    found = _fields(DataSettings, "data")
    found.append(Setting("model.kind", " | ".join(KINDS), DEFAULT, "which model; its own settings follow"))
    for kind in KINDS:
        found += _fields(config_class(kind), "model" if kind == DEFAULT else f"model({kind})")
    for group, settings in (("training", TrainingSettings), ("distill", DistillSettings), ("sampled", SampledSettings)):
        found += _fields(settings, group)
    return [*found, *(one._replace(name="out") for one in _fields(RunConfig, "") if one.name == ".out")]


def _fields(cls: type, group: str) -> list[Setting]:
    """The fields of a settings class, but for those of a model that it finds out by itself."""
    written = {name: told for base in reversed(cls.__mro__) for name, told in _written(base)}
    return [
        Setting(f"{group}.{field.name}", *_told(field, written))
        for field in dataclasses.fields(cls)
        if not (group.startswith("model") and field.name in FOUND)
    ]


def _told(field: dataclasses.Field[Any], written: dict[str, tuple[str, str]]) -> tuple[str, str, str]:
    kind, meaning = written[field.name]
    default = "" if field.default is dataclasses.MISSING else _as_yaml(field.default)
    return kind, default, meaning


def _as_yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _written(cls: type) -> Iterator[tuple[str, tuple[str, str]]]:
    """The name of each field in a class's source, its type as written there, and the comment that goes with it."""
    if not dataclasses.is_dataclass(cls):
        return
    source = textwrap.dedent(inspect.getsource(cls))
    comments = _comments(source)
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, (_kind(node.annotation), _comment(comments, node.end_lineno or node.lineno))


def _comments(source: str) -> dict[int, tuple[str, bool]]:
    """The comment of each line, and whether it is alone there."""
    found = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            found[token.start[0]] = token.string.lstrip("# "), token.line.lstrip().startswith("#")
    return found


def _comment(comments: dict[int, tuple[str, bool]], line: int) -> str:
    """The comment beside a line, and the lines below that go on with it."""
    parts = [comments.get(line, ("", False))[0]]
    while parts[0] and comments.get(line + 1, ("", False))[1]:
        line += 1
        parts.append(comments[line][0])
    return " ".join(parts)


def _kind(annotation: ast.expr) -> str:
    """A type in the words of people who write YAML."""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal":
        choices = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        return " | ".join(str(ast.literal_eval(choice)) for choice in choices)
    words = {"int": "whole number", "float": "number", "bool": "true | false", "str": "text", "None": "nothing"}
    parts = [part.strip() for part in ast.unparse(annotation).split("|")]
    named = [words.get(part, _listed(part, words)) for part in parts if part != "None"]
    return " | ".join(named)


def _listed(part: str, words: dict[str, str]) -> str:
    inner = part.partition("[")[2].rstrip("]").split(",")[0]
    return f"list of {words.get(inner, inner)}" if inner else part
