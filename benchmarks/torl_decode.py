"""torl's sampler on the work of benchmarks.work.Decoding."""

import asyncio
import json
import sys
import time
from typing import Any

from benchmarks.work import Decoding
from torl.samplers.base import SamplingParams
from torl.samplers.embedded.engine import EmbeddedSampler
from torl.tokens import Vocabulary
from torl.weights import load_model_and_tokenizer


def main(model: str, works: list[dict[str, int]]) -> list[dict[str, Any]]:
    network, tokenizer = load_model_and_tokenizer(model)
    vocabulary = Vocabulary(tokenizer)
    decodings = [Decoding(**work) for work in works]
    asyncio.run(measure(network, vocabulary, decodings[0]))  # warms up
    return [asyncio.run(measure(network, vocabulary, d)) for d in decodings]


async def measure(network: Any, vocabulary: Vocabulary, work: Decoding) -> dict[str, Any]:
    sampler = EmbeddedSampler(network, vocabulary, frozenset(), max_sequences=work.sequences)
    seconds, made = {}, 0
    for new in (1, 1, 1 + work.new):  # the first warms the cache up
        start = time.perf_counter()
        sessions = [sampler.open(ids, [(n,)])[0] for n, ids in enumerate(work.prompts())]
        done = await asyncio.gather(*(s.sample([], new, SamplingParams()) for s in sessions))
        seconds[new] = time.perf_counter() - start
        made = sum(len(d.ids) - 1 for d in done)
        for session in sessions:
            session.close()
    await sampler.close()
    return {"name": work.name, "tokens": made, "seconds": seconds[1 + work.new] - seconds[1]}


if __name__ == "__main__":
    print(json.dumps(main(**json.loads(sys.argv[1]))))
