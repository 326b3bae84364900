"""vLLM's CPU build on the work of benchmarks.work.Decoding."""

import json
import os
import sys
import time

from benchmarks.work import Decoding

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
# All cores: by itself it keeps one for its front end, which makes large batches half as fast on two.
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{(os.cpu_count() or 1) - 1}")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from vllm import LLM, SamplingParams


def main(model: str, works: list[dict]) -> list[dict]:
    decodings = [Decoding(**work) for work in works]
    engine = LLM(
        model,
        dtype="bfloat16",
        max_num_seqs=max(d.sequences for d in decodings),
        max_model_len=max(d.prompt + d.new for d in decodings) + 8,
        enable_prefix_caching=False,
        disable_log_stats=True,
    )
    measure(engine, decodings[0])  # warms up
    return [measure(engine, d) for d in decodings]


def measure(engine, work: Decoding) -> dict:
    prompts = [{"prompt_token_ids": ids} for ids in work.prompts()]
    seconds, made = {}, 0
    for new in (1, 1 + work.new):
        params = SamplingParams(temperature=1.0, max_tokens=new, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        outs = engine.generate(prompts, params, use_tqdm=False)
        seconds[new] = time.perf_counter() - start
        made = sum(len(o.outputs[0].token_ids) - 1 for o in outs)
    return {"name": work.name, "tokens": made, "seconds": seconds[1 + work.new] - seconds[1]}


if __name__ == "__main__":
    print(json.dumps(main(**json.loads(sys.argv[1]))))
