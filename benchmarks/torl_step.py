"""torl on the work of benchmarks.work.Step: rollout, advantages and update, as the loop does them."""

import asyncio
import json
import resource
import sys
import time

from benchmarks.work import Step, reward
from torl.algorithms.advantages import advantage_named
from torl.config import Algorithm, Learner, Rollout
from torl.learner.batch import Batch, sample_of
from torl.learner.local import LocalLearner
from torl.rollout.agent import Agent
from torl.rollout.collect import collect
from torl.samplers.embedded.engine import EmbeddedSampler
from torl.tokens import Vocabulary
from torl.train import give_advantages
from torl.types import Task, Trajectory
from torl.weights import load_model_and_tokenizer


def main(model: str, work: dict, steps: int) -> dict:
    return asyncio.run(measure(model, Step(**work), steps))


async def measure(model: str, step: Step, steps: int) -> dict:
    network, tokenizer = load_model_and_tokenizer(model)
    learner = LocalLearner(network, Algorithm(), Learner(lr=1e-6, pack_tokens=2048))
    vocabulary = Vocabulary(tokenizer)
    sampler = EmbeddedSampler(network, vocabulary, frozenset(), max_sequences=step.samples)
    encode = lambda task: tokenizer(task.problem, add_special_tokens=False)["input_ids"]  # noqa: E731
    agent = Agent(sampler, vocabulary, encode, Rollout(max_completion_tokens=step.new))
    seconds, parts, tokens = [], [], {}
    for number in range(steps + 1):
        start = time.perf_counter()
        tasks = [Task(f"{number}-{n}", text, "0") for n, text in enumerate(step.texts(number))]
        places = {task.id: n for n, task in enumerate(tasks)}

        async def judge(t: Trajectory, number: int = number, places: dict[str, int] = places) -> None:
            t.reward = reward(number, places[t.task.id] * step.group + t.sample)

        groups = await collect(agent, tasks, step.group, judge, seed=(0, number))
        give_advantages(groups, advantage_named("grpo"))
        rollout = time.perf_counter()
        batch = Batch([sample_of(t) for g in groups for t in g.trajectories])
        learner.update(batch)
        sampler.set_weights(learner.updates)
        end = time.perf_counter()
        seconds.append(end - start)
        parts.append((rollout - start, end - rollout))
        tokens = {"generated": sum(len(s.ids) for s in batch.samples), "trained": batch.trained_tokens}
    await sampler.close()
    return {
        "name": step.name,
        "tokens": tokens,
        "prompt_tokens": sum(len(g.trajectories[0].prompt_ids) for g in groups),
        "seconds": seconds[1:],
        "parts": parts[1:],
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }


if __name__ == "__main__":
    print(json.dumps(main(**json.loads(sys.argv[1]))))
