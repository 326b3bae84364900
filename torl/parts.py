"""What a run is made of, built from its recipe. Cheap checks come before expensive loading."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import AutoConfig

from torl.config import Recipe
from torl.errors import UserError
from torl.insight.spent import Spent
from torl.rewards import Judge, RewardFunction
from torl.rewards.builtin import Overlong
from torl.rollout.agent import Agent
from torl.rollout.prompt import Encode, fitting, prompt_encoder
from torl.samplers.embedded.engine import EmbeddedSampler
from torl.tasks import TaskSets, load_tasks
from torl.tokens import Vocabulary
from torl.tools import PythonTool, load_tools, make_box
from torl.tools.base import Tool
from torl.tools.functions import function_tool
from torl.types import Task
from torl.weights import end_ids, load_model_and_tokenizer, resolve_model

ToolLike = Tool | Callable[..., Any]


@dataclass
class Parts:
    """The policy, the agent that plays it, the judge and the tasks."""

    model: Any
    tokenizer: Any
    agent: Agent
    judge: Judge
    tasks: TaskSets
    eval_temperature: float = 0.0

    @property
    def evaluated(self) -> Agent:
        """The same agent as it is evaluated: without chance, unless eval.temperature says otherwise."""
        limits = self.agent.limits.model_copy(update={"temperature": self.eval_temperature})
        return replace(self.agent, limits=limits)

    @property
    def python(self) -> PythonTool | None:
        """The Python tool, where the agent has one."""
        return next((t for t in self.agent.tools.values() if isinstance(t, PythonTool)), None)

    async def start(self) -> dict[str, str]:
        """Starts what the tools need; returns what there is to say of all this among the run's versions."""
        kernels = {"kernels": self.agent.sampler.kernels} if self.agent.sampler.kernels else {}
        await self.judge.start()
        return kernels | (await self.python.start() if self.python else {})

    def tool_metrics(self) -> dict[str, float]:
        """What the tools have to say of their calls since the last time."""
        return self.python.metrics() if self.python else {}

    async def close(self) -> None:
        await self.agent.sampler.close()
        await self.judge.close()
        for tool in self.agent.tools.values():
            await tool.close()


def build(
    recipe: Recipe,
    *,
    tasks: Sequence[Task] | TaskSets | None = None,
    tools: Sequence[ToolLike] | None = None,
    rewards: Sequence[RewardFunction] = (),
    model: str | None = None,
) -> Parts:
    """Builds everything. ``tasks``, ``tools`` and ``rewards`` given from Python come before
    what the recipe names (rewards: beside it); ``model`` is a folder to go on from.
    Raises UserError for whatever the recipe or the data have wrong."""
    task_sets = _task_sets(recipe, tasks)
    judge = _judge(recipe, rewards)
    by_name = {
        tool.name: tool for tool in (map(_as_tool, tools) if tools is not None else load_tools(recipe))
    }
    folder = model or resolve_model(recipe.model)
    context = context_length(folder)
    _check_budget(recipe, context)
    loaded, tokenizer = load_model_and_tokenizer(folder, recipe.dtype)
    network: Any = loaded
    network.to(device_of(recipe))
    vocabulary = Vocabulary(tokenizer)
    encode = prompt_encoder(recipe.prompt, vocabulary, tools=bool(by_name))
    spent = Spent()
    sampler = EmbeddedSampler(
        network,
        vocabulary,
        end_ids(network, tokenizer),
        max_sequences=recipe.sampler.max_sequences,
        prefill_tokens=recipe.sampler.prefill_tokens,
        cache_gb=recipe.sampler.cache_gb,
        spent=spent,
    )
    agent = Agent(sampler, vocabulary, encode, recipe.rollout, by_name, spent)
    fitting_sets = _that_fit(task_sets, encode, recipe, context)
    return Parts(network, tokenizer, agent, judge, fitting_sets, recipe.eval.temperature)


def _judge(recipe: Recipe, rewards: Sequence[RewardFunction]) -> Judge:
    return Judge(
        recipe.rewards,
        recipe.correctness,
        rewards,
        efficiency=recipe.efficiency,
        soundness=recipe.soundness,
        llm_judge=recipe.llm_judge,
        overlong=Overlong(recipe.overlong.buffer_ratio, recipe.rollout.max_completion_tokens),
        box=make_box(recipe.sandbox) if recipe.correctness.how == "tests" else None,
    )


def device_of(recipe: Recipe) -> torch.device:
    """The device that the recipe names. Raises UserError when it is not there."""
    name = recipe.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"device={name!r} cannot be used ({error}); use auto, cpu, or cuda where a GPU is"
        ) from error
    return device


def reference(recipe: Recipe, policy: Any) -> Any:
    """The policy as it was before training, frozen, on the policy's device, when the algorithm measures the
    divergence from it; else None. It is loaded anew, since a resumed run's policy has moved on."""
    if not recipe.algorithm.kl_coef:
        return None
    model: Any = load_model_and_tokenizer(resolve_model(recipe.model), recipe.dtype)[0]
    return model.to(policy.device).requires_grad_(False)


def context_length(folder: str) -> int:
    """Tokens that the model was made for, read without loading its weights."""
    return int(getattr(AutoConfig.from_pretrained(folder), "max_position_embeddings", 1 << 30))


def _check_budget(recipe: Recipe, context: int) -> None:
    budget = recipe.rollout.max_completion_tokens
    if budget >= context:
        raise UserError(
            f"rollout.max_completion_tokens={budget} leaves no room for a prompt in the context of "
            f"{recipe.model}, {context} tokens; lower it"
        )


def _task_sets(recipe: Recipe, tasks: Sequence[Task] | TaskSets | None) -> TaskSets:
    if isinstance(tasks, TaskSets):
        return tasks
    if tasks is None:
        return load_tasks(recipe)
    return TaskSets(train=list(tasks), test={}, duplicates=0)


def _as_tool(tool: ToolLike) -> Tool:
    is_tool = hasattr(tool, "name") and hasattr(tool, "close")
    return tool if is_tool else function_tool(tool)  # type: ignore[return-value]


def _that_fit(tasks: TaskSets, encode: Encode, recipe: Recipe, context: int) -> TaskSets:
    def fit(some: list[Task]) -> list[Task]:
        budget = recipe.rollout.max_completion_tokens
        return fitting(some, encode, recipe.prompt, budget, context) if some else []

    return replace(
        tasks, train=fit(tasks.train), test={name: fit(some) for name, some in tasks.test.items()}
    )
