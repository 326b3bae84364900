"""What the step's arithmetic alone would take: its floating-point operations over the rate of bfloat16
matrix products here."""

import json
import statistics
import sys
import time
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SIZE = 2048


def main(model: str) -> dict[str, Any]:
    """The rate, in operations a second, and the parameters behind one token."""
    a, b = torch.randn(SIZE, SIZE).bfloat16(), torch.randn(SIZE, SIZE).bfloat16()
    times = []
    for _ in range(40):
        start = time.perf_counter()
        torch.mm(a, b)
        times.append(time.perf_counter() - start)
    with torch.device("meta"):
        network: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))
    head = network.lm_head.weight.numel()
    body = sum(p.numel() for p in network.model.layers.parameters())
    return {"rate": 2 * SIZE**3 / statistics.median(times[5:]), "body": body, "head": head}


def seconds(found: dict[str, Any], prompt: int, new: int) -> float:
    """A step with ``prompt`` ids of prompts, each computed once in the rollout and once in the update, and
    ``new`` ids that are drawn and trained; forward 2, forward and backward 6 operations a parameter."""
    body, head = found["body"], found["head"]
    return (8 * body * (prompt + new) + 8 * head * new) / float(found["rate"])


if __name__ == "__main__":
    print(json.dumps(main(**json.loads(sys.argv[1]))))
