"""Tiny random models and tokenizers, made in milliseconds, without a download.

    model = tiny_model("qwen3", tied=True)
    tokenizer = byte_level_tokenizer()
    vocabulary = Vocabulary(tokenizer)

Every weight is random and matters: norms are not ones, biases are not zeros, so that a part
of the forward pass that is left out shows in the logits.
"""

import functools
import json
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

FAMILIES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}

ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
    },
}


def tiny_model(
    family: str = "llama",
    *,
    tied: bool = False,
    rope: str = "default",
    vocab_size: int = 300,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    scale: float = 1.0,
    **overrides: Any,
) -> Any:
    """A random model of a family, in eval mode. ``scale`` stretches its logits' spread;
    ``overrides`` are fields of its configuration."""
    config_class, model_class = FAMILIES[family]
    fields: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": tied,
        "rope_parameters": ROPES[rope],
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    } | overrides
    if family == "qwen2":  # its head size follows from the others
        fields.pop("head_dim", None)
    model = model_class(config_class(**fields)).eval()
    randomise(model, seed, scale)
    return model.to(dtype)


def smollm_shaped_model(dtype: torch.dtype = torch.bfloat16, seed: int = 0, vocab_size: int = 49152) -> Any:
    """Two random layers of SmolLM2-135M's shape: matrix kernels choose their blocks by shape."""
    return tiny_model(
        "llama",
        tied=True,
        vocab_size=vocab_size,
        hidden_size=576,
        intermediate_size=1536,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        dtype=dtype,
        seed=seed,
    )


@torch.no_grad()
def randomise(model: Any, seed: int, scale: float = 1.0) -> None:
    """Draws every weight anew: matrices of unit gain, norms around 1, biases around 0."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator).to(weight.dtype)
        if weight.dim() == 2:
            noise *= weight.shape[1] ** -0.5
            if "embed" in name or "lm_head" in name:
                noise *= 2.0 * scale
            weight.copy_(noise)
        elif name.endswith("bias"):
            weight.copy_(0.5 * noise)
        else:
            weight.copy_(1 + 0.3 * noise)


TEXT = (
    "Let me compute this with Python.\n```python\nprint(12 * 31)\n```\n```output\n372\n```\n"
    "The answer is \\boxed{372}. Natural language reasoning; 3 apples cost $4.50, naïve café, "
    "Größe, 数学は楽しい, 你好世界, Привет мир, 🙂🙃, def f(x):\n    return x + 1\n"
) * 3
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CONTROL = "<tool_call>"  # an added token that is not marked special, as Qwen has them


@functools.cache
def _byte_level_backend(vocab_size: int) -> str:
    backend = Tokenizer(BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocab_size - 1,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([TEXT], trainer)
    backend.add_tokens([AddedToken(CONTROL, special=False, normalized=False)])
    return backend.to_str()


def byte_level_tokenizer(vocab_size: int = 300, *, nfc: bool = False) -> Any:
    """GPT-2's kind, as SmolLM2, Llama 3 and Qwen have (Qwen with ``nfc``). A character of
    several bytes is often split over ids."""
    backend = Tokenizer.from_str(_byte_level_backend(vocab_size))
    if nfc:
        backend.normalizer = normalizers.NFC()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token=SPECIAL[0])


@functools.cache
def _sentencepiece_parts(vocab_size: int) -> tuple[dict[str, int], tuple[tuple[str, str], ...]]:
    """Vocabulary and merges: 3 specials, 256 bytes, the text's characters, merged pieces."""
    first = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    trained = Tokenizer(BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    size = max(vocab_size - len(first), len(set(TEXT)) + 2)
    trained.train_from_iterator([TEXT], BpeTrainer(vocab_size=size, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].get)
    vocabulary = {piece: number for number, piece in enumerate(first + pieces)}
    return vocabulary, tuple((a, b) for a, b in model["merges"])


def sentencepiece_tokenizer(vocab_size: int = 400, *, prepend: str = "normalizer") -> Any:
    """Llama 2's kind: BPE over characters, spaces as U+2581, bytes for unknown characters.

    ``prepend``: who puts a space before a text: the "normalizer" (Llama 2's files), the
    "metaspace" pre-tokenizer (newer files), or "nobody".
    """
    vocabulary, merges = _sentencepiece_parts(vocab_size)
    backend = Tokenizer(
        BPE(vocab=vocabulary, merges=list(merges), byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    )
    if prepend == "normalizer":
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        scheme = "first" if prepend == "metaspace" else "never"
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *([] if prepend == "nobody" else [decoders.Strip(" ", 1, 0)]),
        ]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
