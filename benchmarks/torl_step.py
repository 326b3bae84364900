"""torl on the work of benchmarks.work.Step: rollout, advantages and update, as the loop does them.

With ``calls``, what is drawn is a script in which requests for the tool stand among plain ids. The forward
passes, the sandbox and the update are the real ones, and ids of observations come on top: so steps with and
without calls train on the same number of ids.
"""

import asyncio
import json
import random
import resource
import sys
import time
from typing import Any

import torch

from benchmarks.work import VOCABULARY, Step, reward
from torl import config
from torl.algorithms.advantages import advantage_named
from torl.credit import give_advantages
from torl.learner.batch import Batch, sample_of
from torl.learner.local import LocalLearner
from torl.model.network import Network
from torl.rollout.agent import Agent
from torl.rollout.collect import collect
from torl.samplers.embedded.engine import EmbeddedSampler
from torl.samplers.embedded.session import EmbeddedSession
from torl.tokens import Vocabulary
from torl.tools.python import PythonTool
from torl.types import Task, Trajectory
from torl.weights import load_model_and_tokenizer

CALL = "\n```python\n{a}*{b}\n```output"  # as short as what the quickstart learns to write
OBSERVATION = 32  # ids at most


class Scripted(EmbeddedSampler):
    """Computes and draws as ever, and then takes what the session's script says."""

    calls = 0
    new = 0

    def _draw(self, sessions: list[EmbeddedSession], logits: torch.Tensor) -> list[EmbeddedSession]:
        params = [s.request.params for s in sessions if s.request is not None]
        _, logprobs = self._decoder.draw(logits, [s.next_uniform() for s in sessions], params)
        finished = []
        for session, logprob in zip(sessions, logprobs.tolist(), strict=True):
            if not hasattr(session, "script"):
                session.script = self._script(session)  # type: ignore[attr-defined]
            token = session.script.pop(0)  # type: ignore[attr-defined]
            last = not session.script  # type: ignore[attr-defined]
            if session.receive(token, logprob, self._vocabulary.bytes_of(token), last):
                finished.append(session)
        return finished

    def _script(self, session: EmbeddedSession) -> list[int]:
        source = random.Random(session.next_uniform())
        ids = [source.randrange(1000, VOCABULARY) for _ in range(self.new)]
        for call in range(self.calls):  # requests at the end, at the middle
            text = CALL.format(a=source.randrange(10, 100), b=source.randrange(10, 100))
            request = self._vocabulary.encode(text)
            end = self.new * (call + 1) // (self.calls + 1)
            ids[end - len(request) : end] = request
        return ids


class Rows:
    """Counts the ids that went through the network, while sampling and while learning."""

    def __init__(self) -> None:
        self.counts = {"rollout": 0, "update": 0}
        run = Network.run

        def counting(network: Network, ids: torch.Tensor, *rest: Any, **more: Any) -> torch.Tensor:
            self.counts["update" if torch.is_grad_enabled() else "rollout"] += len(ids)
            return run(network, ids, *rest, **more)

        Network.run = counting  # type: ignore[method-assign]

    def take(self) -> dict[str, int]:
        counts, self.counts = self.counts, dict.fromkeys(self.counts, 0)
        return counts


def main(
    model: str, work: dict[str, int], steps: int, calls: list[int], pack_tokens: int
) -> list[dict[str, Any]]:
    """``steps`` steps for each number of ``calls``, taken in turns."""
    return asyncio.run(measure(model, Step(**work), steps, calls, pack_tokens))


async def measure(
    model: str, step: Step, steps: int, calls: list[int], pack_tokens: int
) -> list[dict[str, Any]]:
    network, tokenizer = load_model_and_tokenizer(model)
    vocabulary, rows = Vocabulary(tokenizer), Rows()
    learner = LocalLearner(network, config.Algorithm(), config.Learner(lr=1e-6, pack_tokens=pack_tokens))
    sampler = Scripted(network, vocabulary, frozenset(), max_sequences=step.samples)
    sampler.new = step.new
    tool = PythonTool()
    await tool.start()
    found: dict[int, dict[str, Any]] = {
        n: {"name": step.name, "calls": n, "seconds": [], "rollout": [], "update": []} for n in calls
    }
    for number in range(2 + steps):  # two to warm up
        for n in calls if number > 1 else calls[-1:]:
            sampler.calls = n
            limits = config.Rollout(
                max_completion_tokens=step.new + n * (OBSERVATION + 8),
                max_observation_tokens=OBSERVATION,
                max_tool_calls=max(1, n),
            )
            agent = Agent(
                sampler, vocabulary, lambda task: vocabulary.encode(task.problem), limits, {"python": tool}
            )
            out = await one_step(agent, learner, step, number)
            if number > 1:
                for key in ("seconds", "rollout", "update"):
                    found[n][key].append(out.pop(key))
                found[n] |= out | {"rows": rows.take()}
            rows.take()
    await sampler.close()
    await tool.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    weights = sum(p.numel() for p in network.parameters())
    state = weights * (2 + 4 + 4 + 8)  # bfloat16 weights; float32 masters, gradients, two moments
    return [one | {"peak_bytes": peak, "state_bytes": state} for one in found.values()]


async def one_step(agent: Agent, learner: LocalLearner, step: Step, number: int) -> dict[str, Any]:
    start = time.perf_counter()
    tasks = [Task(f"{number}-{n}", text, "0") for n, text in enumerate(step.texts(number))]
    places = {task.id: n for n, task in enumerate(tasks)}

    async def judge(trajectory: Trajectory) -> None:
        place = places[trajectory.task.id] * step.group + trajectory.sample
        trajectory.reward = reward(number, place)

    groups = await collect(agent, tasks, step.group, judge, seed=(0, number))
    give_advantages(groups, advantage_named("grpo"))
    middle = time.perf_counter()
    trajectories = [t for group in groups for t in group.trajectories]
    samples = [sample_of(t) for t in trajectories]
    learner.update(Batch(samples))
    agent.sampler.set_weights(learner.updates)
    end = time.perf_counter()
    return {
        "seconds": end - start,
        "rollout": middle - start,
        "update": end - middle,
        "generated": sum(sum(t.sampled) for t in trajectories),
        "trained": sum(s.trained_tokens for s in samples if s.has_signal),
        "prompt_tokens": sum(len(g.trajectories[0].prompt_ids) for g in groups),
        "called": sum(bool(t.calls) for t in trajectories) / len(trajectories),
    }


if __name__ == "__main__":
    print(json.dumps(main(**json.loads(sys.argv[1]))))
