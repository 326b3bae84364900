"""A decoding pass of torl's sampler at growing contexts, beside the bytes that it must read."""

import json
import statistics
import sys
import time
from typing import Any

from torl.model.network import Network
from torl.model.rows import BLOCK
from torl.samplers.embedded.decoder import Decoder
from torl.weights import load_model_and_tokenizer


def main(model: str, sequences: int, lengths: list[int]) -> list[dict[str, Any]]:
    loaded, _ = load_model_and_tokenizer(model)
    network = Network(loaded)
    layers, keys, dim = len(network.layers), network.key_heads, network.head_dim
    token_bytes = 2 * 2 * layers * keys * dim
    weights = 2 * sum(p.numel() for p in loaded.parameters())
    blocks = sequences * (max(lengths) // BLOCK + 2)
    decoder = Decoder(network, sequences, blocks * BLOCK * token_bytes)
    slots, found = list(range(sequences)), []
    for slot in slots:
        assert decoder.cache.reserve(slot, max(lengths) + 1)
    for length in sorted(lengths):
        times = []
        for _ in range(25):
            start = time.perf_counter()
            decoder.forward([5] * sequences, slots, [length] * sequences, slots)
            times.append(time.perf_counter() - start)
        read = weights + sequences * length * token_bytes
        found.append({"length": length, "seconds": statistics.median(times[5:]), "bytes": read})
    return found


if __name__ == "__main__":
    print(json.dumps(main(**json.loads(sys.argv[1]))))
