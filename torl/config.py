"""A recipe: everything that decides a run, typed and documented.

A recipe is a YAML file with the keys below, changed by dotted ``key=value`` overrides.
An unknown key, a wrong type and an impossible combination are refused before anything is
loaded, with the choices and the nearest name.
"""

from typing import Any, Literal

import yaml
from pydantic import Field, model_validator

from torl import recipe_file
from torl.algorithms.settings import ALONE, Algorithm, Critic, Filters
from torl.rewards.settings import Correctness, Efficiency, LLMJudge, Overlong, Soundness, check_rewards
from torl.sandbox.types import Tier
from torl.section import Section, build


class Tasks(Section):
    train: str = "builtin"
    """"builtin", or a path to .jsonl/.json/.parquet, or hf:owner/name[:split]."""
    test: str | list[str] = "builtin"
    """Held-out tasks: like train; several sources are measured one by one."""
    limit: int | None = Field(None, gt=0)
    """Use at most this many training tasks (a seeded choice)."""
    test_limit: int | None = Field(None, gt=0)
    """Use at most this many held-out tasks of each source (a seeded choice)."""
    holdout: int = Field(0, ge=0)
    """This many tasks of the file `tasks.train` are held out (a seeded choice) and measured. Needed
    when train and test are one file."""
    split_seed: int = 0
    """Seed of the choices above. Apart from `seed`, so that runs of all seeds share a split."""
    kinds: list[str] | None = None
    """Built-in tasks only: the kinds to draw from (default: all of them)."""
    difficulty: float = Field(0.3, ge=0.0, le=1.0)
    """Built-in tasks only: 0 is easiest, 1 hardest."""
    size: int = Field(4096, gt=0)
    """Built-in tasks only: how many training tasks to generate."""


class Prompt(Section):
    template: str = "worked-examples"
    """"torl" (the paper's base-model prompt), "worked-examples", "chat" (the tokenizer's chat
    template), or a path to a text file with {problem} in it."""
    system: str | None = None
    """Template "chat" only: the system message (default: the paper's instruction, or without tools
    one to reason step by step)."""
    max_tokens: int | None = Field(None, gt=0)
    """Tasks with a longer prompt are dropped, and counted. Without it, a prompt that does not
    fit the model's context beside the completion is an error."""


class Rollout(Section):
    max_tool_calls: int = Field(1, ge=0)
    """The paper's C: calls that are executed in one trajectory."""
    max_completion_tokens: int = Field(256, gt=0)
    """Budget of a whole trajectory after its prompt, observations included."""
    max_observation_tokens: int = Field(128, gt=0)
    """Longer observations keep their head and tail."""
    temperature: float = Field(1.0, ge=0.0)
    """0 is greedy. Log-probabilities are those of the distribution really drawn from."""
    top_k: int = Field(0, ge=0)
    """Only so many of the likeliest tokens are drawn from (0: all). The learner still trains the whole
    distribution, so with this, top_p or min_p the sampler's log-probabilities are not the learner's."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Only the likeliest tokens that together have this probability are drawn from."""
    min_p: float = Field(0.0, ge=0, lt=1)
    """Only tokens at least this many times as likely as the likeliest are drawn from."""
    stop: list[str] = Field([])
    """Strings that end a trajectory when the policy writes them, beside its end-of-turn ids."""
    past_budget: Literal["tell", "ignore"] = "tell"
    """After C calls: "tell" the policy that no calls are left, or "ignore" requests (paper)."""
    max_requests_past_budget: int = Field(2, ge=0)
    """With "tell": so many requests after the last call are answered; the next ends the trajectory."""
    train_truncated: bool = True
    """Whether trajectories cut off by the budget train (False: their loss mask is zeroed)."""
    retries: int = Field(1, ge=0)
    """How often a trajectory lost to the world's fault is tried again before it is dropped."""
    tool_timeout_s: float = Field(600.0, gt=0)
    """A tool that has not answered by then, waiting included, is the world's fault."""


class Sampler(Section):
    max_sequences: int = Field(64, gt=0)
    """Sequences that are decoded together (slots)."""
    prefill_tokens: int = Field(512, gt=0)
    """Prompt and observation tokens are computed in chunks of at most this many."""
    cache_gb: float = Field(4.0, gt=0)
    """Memory for keys and values at most, taken as it is needed. When it is full, the newest sequences
    give theirs up and are computed again later, to the same tokens."""


class Sandbox(Section):
    timeout_s: float = Field(20.0, gt=0)
    """Wall-clock limit of one call, a backstop for code that waits; queueing is not charged."""
    cpu_s: float = Field(5.0, gt=0)
    """CPU limit of one call: the budget that does not depend on how busy the machine is."""
    memory_mb: int = Field(512, gt=0)
    """Address space of one call, beyond what the warm interpreter holds."""
    output_kb: int = Field(64, gt=0)
    """Bytes kept of each stream; the rest is counted and dropped."""
    workers: int = Field(0, ge=0)
    """Calls that run at once (0: one per core)."""
    tier: Literal["auto"] | Tier = "auto"
    """The isolation (docs/sandbox.md): the strongest that works here, or that tier and no other.
    ``sandbox: unsafe`` is short for the tier "unsafe": the code may do whatever you may."""
    state: Literal["none", "replay", "session"] = "none"
    """What a call sees of its trajectory's earlier ones: nothing; all, run again silently; or one
    process for the whole trajectory."""
    last_value: bool = True
    """The value of a last expression is shown, as in a notebook."""
    python: str = ""
    """The interpreter of the tool's packages ("": this one)."""
    preload: list[str] = Field(["numpy", "scipy", "sympy"])
    """Packages imported ahead of the calls, where they are installed."""
    urls: list[str] = Field([])
    """Calls go to these servers (torl sandbox serve, or SandboxFusion's) instead. A token is taken
    from the environment's TORL_SANDBOX_TOKEN."""

    @model_validator(mode="before")
    @classmethod
    def _tier_alone(cls, value: Any) -> Any:
        return {"tier": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _remote_is_stateless(self) -> "Sandbox":
        if self.urls and self.state != "none":
            raise ValueError(
                f"state={self.state} needs a sandbox on this machine; with urls it must be none"
            )
        return self


class Learner(Section):
    lr: float = Field(1e-6, gt=0)
    """AdamW's learning rate."""
    warmup_steps: int = Field(0, ge=0)
    """Updates in which the learning rate rises linearly to lr."""
    decay_steps: int = Field(0, ge=0)
    """Updates in which it then falls linearly to 0 (0: it stays)."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW's decoupled weight decay."""
    beta1: float = Field(0.9, ge=0, lt=1)
    """AdamW's decay of the gradient's mean."""
    beta2: float = Field(0.999, ge=0, lt=1)
    """AdamW's decay of the gradient's square."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are scaled down to this norm."""
    pack_tokens: int = Field(2048, gt=0)
    """Tokens of one forward pass; a batch is split into packs of at most this many."""
    activation_checkpointing: bool = False
    """Recompute activations in backward: less memory, about a third more time."""
    max_bad_updates: int = Field(3, gt=0)
    """Stop after this many updates in a row with a non-finite loss or gradient."""


class Eval(Section):
    every: int = Field(0, ge=0)
    """Evaluate held-out tasks every n steps (0: only before and after training)."""
    before: bool = True
    """Evaluate before the first step."""
    temperature: float = Field(0.0, ge=0.0)
    """Temperature of the evaluation (0: greedy)."""


class Checkpoint(Section):
    every: int = Field(10, ge=0)
    """Save every n steps (0: only at the end or on interruption)."""
    keep: int = Field(1, gt=0)
    """How many of the newest checkpoints stay."""


class Recipe(Section):
    """One run. Sections are documented field by field; `torl train RECIPE --show` prints all."""

    name: str = "recipe"
    """Names the run's folder; by default the recipe's own name."""
    description: str = ""
    """One line for `torl recipes`."""
    model: str = "smollm2-135m-instruct"
    """A bundled name, a local Hugging Face folder, or a hub id."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Type of the weights in computation; the optimizer keeps float32 master weights."""
    device: str = "auto"
    """"auto" (a GPU when there is one), "cpu", "cuda", "cuda:1", ..."""
    seed: int = 0
    """Decides the order of tasks and every token drawn."""
    steps: int = Field(30, gt=0)
    """Training steps."""
    prompts_per_step: int = Field(12, gt=0)
    """Tasks drawn for one step."""
    group_size: int = Field(8, gt=0)
    """Trajectories of each task (the paper's 16, GRPO's G)."""
    tools: list[str] = Field(["python"])
    """"python", or import paths of functions (pkg.module:function); `none` switches tools off."""
    rewards: dict[str, float] = Field(recipe_file.DEFAULT_REWARDS)
    """Reward functions by name or import path, each with its weight in the sum."""
    tasks: Tasks = Tasks()
    prompt: Prompt = Prompt()
    rollout: Rollout = Rollout()
    sampler: Sampler = Sampler()
    sandbox: Sandbox = Sandbox()
    correctness: Correctness = Correctness()
    efficiency: Efficiency = Efficiency()
    soundness: Soundness = Soundness()
    llm_judge: LLMJudge = LLMJudge()
    overlong: Overlong = Overlong()
    filters: Filters = Filters()
    algorithm: Algorithm = Algorithm()
    learner: Learner = Learner()
    critic: Critic = Critic()
    eval: Eval = Eval()
    checkpoint: Checkpoint = Checkpoint()

    @model_validator(mode="before")
    @classmethod
    def _none_means_no_tools(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("tools") in (None, "none", ["none"]) and "tools" in data:
            return {**data, "tools": []}
        if isinstance(data, dict) and isinstance(data.get("tools"), str):
            return {**data, "tools": [data["tools"]]}
        return data

    @model_validator(mode="after")
    def _possible(self) -> "Recipe":
        advantage = self.algorithm.advantage
        if self.group_size < 2 and ":" not in advantage and advantage not in ALONE:
            raise ValueError(
                f"group_size: 1 gives {advantage} no group to compare with (every advantage is 0); use at "
                f"least 2, usually 8 or 16, or algorithm.advantage={' or '.join(ALONE)}"
            )
        if self.rollout.max_observation_tokens >= self.rollout.max_completion_tokens and self.tools:
            raise ValueError(
                f"rollout.max_observation_tokens={self.rollout.max_observation_tokens} leaves no room "
                f"in rollout.max_completion_tokens={self.rollout.max_completion_tokens}, which counts "
                "observations too; lower the first or raise the second"
            )
        samples = self.prompts_per_step * self.group_size
        if self.algorithm.mini_batches > samples:
            raise ValueError(
                f"algorithm.mini_batches={self.algorithm.mini_batches} is more than the "
                f"{samples} trajectories of a step (prompts_per_step x group_size)"
            )
        if not self.rewards:
            raise ValueError("rewards: at least one reward function is needed, e.g. {correctness: 1.0}")
        check_rewards(self.rewards, self.correctness, self.efficiency, self.llm_judge)
        return self

    def override(self, **changes: Any) -> "Recipe":
        """A copy with dotted keys changed: ``recipe.override(**{"learner.lr": 1e-5})``."""
        data = self.model_dump()
        for key, value in changes.items():
            recipe_file.put(data, key, value)
        return build(Recipe, data, source="override")

    def to_yaml(self) -> str:
        """The full resolved recipe; loading it gives an equal one."""
        return yaml.safe_dump(self.model_dump(), sort_keys=False, allow_unicode=True)


def load_recipe(name_or_path: str, overrides: list[str] | None = None) -> Recipe:
    """Loads a built-in recipe by name, or a YAML file, and applies ``key=value`` overrides.

    Raises UserError naming the key, the choices and the nearest name.
    """
    return build(Recipe, recipe_file.read(name_or_path, overrides or []), source=name_or_path)


def builtin_recipes() -> dict[str, str]:
    """Names of the recipes that come with torl, each with its one-line description."""
    return {name: load_recipe(name).description for name in recipe_file.names()}


__all__ = [
    "Algorithm",
    "Correctness",
    "Critic",
    "Efficiency",
    "Filters",
    "LLMJudge",
    "Overlong",
    "Recipe",
    "Section",
    "Soundness",
    "builtin_recipes",
    "load_recipe",
]
