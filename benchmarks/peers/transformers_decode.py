"""``transformers.generate`` on the work of benchmarks.work.Decoding."""

import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM

from benchmarks.work import Decoding


def main(model: str, works: list[dict]) -> list[dict]:
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16, attn_implementation="sdpa")
    return [measure(network, Decoding(**work)) for work in works]


def measure(network, work: Decoding) -> dict:
    prompts = torch.tensor(work.prompts())
    seconds, made = {}, 0
    for new in (1, 1 + work.new):
        start = time.perf_counter()
        out = network.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            min_new_tokens=new,
            max_new_tokens=new,
            pad_token_id=0,
        )
        seconds[new] = time.perf_counter() - start
        made = out.shape[0] * (out.shape[1] - work.prompt - 1)
    return {"name": work.name, "tokens": made, "seconds": seconds[1 + work.new] - seconds[1]}


if __name__ == "__main__":
    print(json.dumps(main(**json.loads(sys.argv[1]))))
