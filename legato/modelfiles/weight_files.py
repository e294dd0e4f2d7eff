"""Which files hold the weights of a model: safetensors, else pytorch_model.bin; the parts of a .gguf file."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from legato.core.errors import ConfigError, ModelError
from legato.modelfiles.hf_config import read_json

_PART_NAME = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.ASCII | re.DOTALL)
MAX_NAME_CHARS = 256
PICKLED_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """Names of a kind of files: one that holds everything, or an index of several."""

    single: str
    index: str


SAFETENSORS = WeightLayout("model.safetensors", "model.safetensors.index.json")
TORCH_BIN = WeightLayout("pytorch_model.bin", "pytorch_model.bin.index.json")


def layout_of(folder: Path) -> WeightLayout | None:
    """The first kind that is there; None where neither is."""
    return layout_among(lambda name: (folder / name).is_file())


def layout_among(is_there: Callable[[str], bool]) -> WeightLayout | None:
    """The first kind of which a file is there, by its name; None where neither is."""
    for layout in (SAFETENSORS, TORCH_BIN):
        if is_there(layout.index) or is_there(layout.single):
            return layout
    return None


def files_of(folder: Path, layout: WeightLayout) -> list[Path]:
    """The file, or the shards that the index names. Raises ModelError for an unusable index."""
    index = folder / layout.index
    if not index.is_file():
        return [folder / layout.single]
    return [folder / name for name in sorted(set(read_weight_map(index).values()))]


def read_weight_map(index: Path) -> dict[str, str]:
    """Tensor name -> the name of its shard. Raises ModelError for an unusable index."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ModelError(f"{index} holds no readable weight_map, tensors and their files; download it again")
    if not all(isinstance(name, str) and _is_file_name(name) for name in weight_map.values()):
        raise ModelError(f"{index}: a shard must be the name of a file in the same folder")
    return weight_map


def gguf_parts(path: Path) -> list[Path]:
    """All parts of a .gguf file that has the name of one: NAME-00001-of-00003.gguf; of another, itself."""
    match = _PART_NAME.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    return [
        path.with_name(f"{match['name']}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)
    ]


def model_name(path: Path) -> str:
    """A .gguf file's name without what says that it is a part."""
    match = _PART_NAME.fullmatch(path.name)
    return match["name"] if match else path.stem


def _is_file_name(name: str) -> bool:
    return Path(name).name == name and name.isprintable() and len(name) < MAX_NAME_CHARS


def absence(folder: Path) -> str:
    """What to say of a directory that holds no weights in a known layout."""
    pickled = sorted(each.name for each in folder.glob("*") if each.suffix in PICKLED_SUFFIXES)
    if pickled:
        wanted = f"neither {SAFETENSORS.single} nor {TORCH_BIN.single}"
        return f"{folder} holds {wanted}, but {pickled[0]}: {PICKLED_REMEDY}"
    return (
        f"{folder} holds neither {SAFETENSORS.single} nor {TORCH_BIN.single}, nor the index of its"
        " shards; for one model, --load-format dummy makes weights up"
    )


def check_load_format(load_format: str, path: Path) -> None:
    """Raise ConfigError where weights are to be made up and no directory says of what shapes."""
    if load_format == "dummy" and not path.is_dir():
        raise ConfigError(
            f"--load-format dummy is for a directory with a config.json, and {path} is a file;"
            " leave the flag out to read its weights"
        )


PICKLED_REMEDY = (
    "loading such a pickled file can run code from it, so legato refuses;"
    " convert it to safetensors, e.g. by loading and saving the model with transformers"
)
