"""`Transformer`: the sizes of a transformer, and how its implementation runs a layer."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from profilers.datasets import dataset_path
from profilers.errors import InvalidInputError, NotFoundError
from profilers.toml_text import read_toml
from replay.sizes import LARGEST, checked_size

__all__ = ["STYLES", "Transformer", "find_transformer", "load_transformers"]

#: Implementations, by what sets them apart.
STYLES: Mapping[str, str] = MappingProxyType(
    {
        "bert": "encoder; three projections, additive mask, exact GELU, a normalisation after each block",
        "gpt2": "decoder; one projection, causal mask by selection, GELU of eight operators, a normalisation before",
        "opt": "decoder; three projections, causal mask added and clamped, ReLU, a normalisation before",
        "switch": "encoder and decoder without biases; position bias, ReLU, every second layer of experts",
        "megatron": "decoder; one projection, fused mask and softmax, fused bias and GELU, normalisations before",
    }
)
_SIZES = ("layers", "hidden", "heads", "feedforward", "vocabulary")
#: Most layers and experts; those of all layers together are bounded too, since lists of steps grow with them.
_MOST = MappingProxyType({"layers": 10_000, "experts": 2**14})
_MOST_EXPERTS = 2**20
_SHOWN = 60


@dataclass(frozen=True)
class Transformer:
    """Sizes of a model.

    Parameters
    ----------
    name : str
    style : str
        One of `STYLES`.
    layers, hidden, heads, feedforward, vocabulary : int
        At most 10,000 layers, and 2^31 of the others.
    experts : int
        Of a layer that has some; 1 elsewhere. At most 16,384, and 2^20 in all layers.
    source : str

    Raises
    ------
    InvalidInputError
        There is no such style, a size is no whole number from one to what it may be, or the heads do not divide the
        hidden size.
    """

    name: str
    style: str
    layers: int
    hidden: int
    heads: int
    feedforward: int
    vocabulary: int
    experts: int = 1
    source: str = ""

    def __post_init__(self) -> None:
        if self.style not in STYLES:
            raise InvalidInputError(f"{self.name}: no style {self.style!r}; there are {', '.join(STYLES)}")
        for size in (*_SIZES, "experts"):
            value = checked_size(f"{self.name}: {size}", getattr(self, size), _MOST.get(size, LARGEST))
            object.__setattr__(self, size, value)
        if self.layers * self.experts > _MOST_EXPERTS:
            raise InvalidInputError(
                f"{self.name}: {self.layers} layers of {self.experts} experts; at most {_MOST_EXPERTS:,} in all"
            )
        if self.hidden % self.heads:
            raise InvalidInputError(f"{self.name}: {self.heads} heads do not divide a hidden size of {self.hidden}")

    @property
    def width(self) -> int:
        """Elements of a head."""
        return self.hidden // self.heads


def load_transformers(path: str | Path | None = None) -> Mapping[str, Transformer]:
    """Read models from a TOML file in the layout of `datasets/workloads/transformers.toml`, by default that one.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file; or it is no such file: the model and the key are named.

    Examples
    --------
    >>> load_transformers()["bert_large"].width
    64
    """
    return _shipped() if path is None else _read(Path(path))


@cache
def _shipped() -> Mapping[str, Transformer]:
    return _read(dataset_path("workloads/transformers.toml"))


def _read(file: Path) -> Mapping[str, Transformer]:
    content = read_toml(file, "models").get("transformers")
    if not isinstance(content, dict) or not content:
        raise InvalidInputError(f"{file}: no table [transformers.NAME]")
    return MappingProxyType({name: _transformer(file, name, row) for name, row in content.items()})


def _transformer(file: Path, name: str, row: object) -> Transformer:
    if not isinstance(row, dict):
        raise InvalidInputError(f"{file}: transformers.{name} is no table")
    known: dict[str, type] = {"style": str, "source": str, "experts": int, **dict.fromkeys(_SIZES, int)}
    for key, value in row.items():
        if key not in known or not isinstance(value, known[key]) or isinstance(value, bool):
            text = f"{key} = {value!r}"[:_SHOWN]
            raise InvalidInputError(f"{file}: transformers.{name}: {text}; keys are {', '.join(known)}")
    if missing := [key for key in ("style", *_SIZES) if key not in row]:
        raise InvalidInputError(f"{file}: transformers.{name} lacks {', '.join(missing)}")
    try:
        return Transformer(name, **row)
    except InvalidInputError as error:
        raise InvalidInputError(f"{file}: {error}") from error


def find_transformer(name: str, known: Mapping[str, Transformer] | None = None) -> Transformer:
    """Return a model by name.

    Raises
    ------
    NotFoundError
        There is none of that name; those that are there are listed.
    """
    models = load_transformers() if known is None else known
    if name not in models:
        raise NotFoundError(f"no model {name!r}; there are {', '.join(sorted(models))}; add it to a file of models")
    return models[name]
