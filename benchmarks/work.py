"""The work that torl and its peers are timed on: the same ids in, the same number of ids out.

Only the standard library: each peer's own environment imports it.
"""

import random
from dataclasses import dataclass

VOCABULARY = 40_000  # ids below it are plain text in every tokenizer used here


@dataclass(frozen=True)
class Decoding:
    """``sequences`` different prompts, each continued by ``new`` ids whatever they are."""

    sequences: int
    prompt: int = 128
    new: int = 64

    @property
    def name(self) -> str:
        return f"decode, {self.sequences} sequences, {self.prompt} + {self.new} tokens"

    @property
    def tokens(self) -> int:
        return self.sequences * self.new

    def prompts(self) -> list[list[int]]:
        draw = random.Random(self.sequences)
        return [
            [draw.randrange(1000, VOCABULARY) for _ in range(self.prompt)] for _ in range(self.sequences)
        ]


@dataclass(frozen=True)
class Step:
    """A GRPO step without tools: every completion is ``new`` ids long and every one trains."""

    prompts: int = 8
    group: int = 8
    new: int = 64
    words: int = 100  # of a prompt; about 150 tokens

    @property
    def name(self) -> str:
        return f"GRPO step, {self.prompts} x {self.group} samples of {self.new} tokens"

    @property
    def samples(self) -> int:
        return self.prompts * self.group

    @property
    def tokens(self) -> int:
        return self.samples * self.new

    def texts(self, step: int) -> list[str]:
        """The prompts of a step."""
        draw = random.Random(step)
        return [" ".join(draw.choice(WORDS) for _ in range(self.words)) for _ in range(self.prompts)]


WORDS = (
    "Anna has seven apples and buys twelve more from the market on Monday morning before she gives a third "
    "of them to her brother who lives 40 km away; how many minutes will the train need if it leaves at 9 "
    "and 250 people pay 18 dollars each for two tickets while the price falls by 15 percent every week"
).split()


def reward(step: int, sample: int) -> float:
    """Right or wrong by a coin: what is timed does not depend on what was written."""
    return float(random.Random(1_000_003 * step + sample).random() < 0.5)
