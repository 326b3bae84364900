"""Models outside the fast path: the same sampler and learner, by transformers' own forward pass."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.learner_kit import BATCH, Gradients, batch_of, gradients, learner, reference_loss, relative_error
from tests.test_embedded import (
    LONG,
    SHORT,
    Turns,
    assert_independent,
    assert_logprobs_equal_a_full_forward,
    ids_of,
)

SMALL = {"vocab_size": 300, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
LAYERS = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
}
MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 512},
    "gemma2": {**LAYERS, "head_dim": 8, "sliding_window": 16, "final_logit_softcapping": 5.0},
    "qwen2": {**LAYERS, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
}
TURNS: Turns = [(4, SHORT), (4, LONG), (3, [])]


def foreign(family: str, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **SMALL, **MODELS[family])
    return AutoModelForCausalLM.from_config(config).eval().to(dtype)


@pytest.mark.parametrize("family", MODELS)
def test_logprobs_equal_a_full_forward(family: str, caplog: pytest.LogCaptureFixture) -> None:
    assert_logprobs_equal_a_full_forward(foreign(family), TURNS, max_sequences=6)
    assert "own forward pass is used, which is slower" in caplog.text


def test_a_trajectory_is_the_same_in_any_company() -> None:
    shared = ids_of(140, seed=9)
    prompts = [shared, shared[:100] + ids_of(40, 1), ids_of(1, 2), ids_of(30, 3)]
    assert_independent(foreign("gpt2", torch.bfloat16), prompts, TURNS, [3, 8, 32])


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_equal_the_padded_computation(family: str, recompute: bool) -> None:
    model = foreign(family, torch.float64)
    subject = learner(model, Gradients, pack_tokens=64, activation_checkpointing=recompute)
    batch = batch_of(*BATCH)
    subject.update(batch)
    model.eval()
    expected = gradients(model, reference_loss(model, batch.samples))
    found = {name: g for name, g in subject.seen[0].items() if name in expected}
    assert relative_error(found, expected) < 1e-6
