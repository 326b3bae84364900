"""The recipe's sections of the rewards, and what of them cannot go together."""

import re
from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from torl.imports import nearest
from torl.section import Section

CHECKS = (
    "answer_once",
    "agrees_with_tool",
    "no_invented_output",
    "no_repetition",
    "language_kept",
    "format_kept",
)
"""The names in torl/rewards/soundness.py."""


class Correctness(Section):
    how: Literal["math", "exact", "numeric", "choice", "regex", "tests"] = "math"
    """What decides (docs/rewards.md): "math" (math-verify), "exact" (equal strings), "numeric" (numbers
    within a tolerance), "choice" (a letter), "regex" (the answer is found by `pattern`, then "exact"),
    "tests" (the last code block passes the tests in task.meta["tests"])."""
    right: float = 1.0
    """Reward of a correct final answer."""
    wrong: float = -1.0
    """Reward of a wrong or missing final answer (paper: -1; verl and TRL use 0)."""
    ignore_case: bool = False
    """"exact" and "regex" only: capital and small letters are the same."""
    rel_tol: float = Field(1e-6, ge=0, lt=1)
    """"numeric" only: allowed distance, as a share of the reference."""
    abs_tol: float = Field(0.0, ge=0)
    """"numeric" only: allowed distance; the larger one counts."""
    pattern: str = ""
    """"regex" only: a regular expression of Python. Its last match in the policy's prose is the answer, or
    the match's first group where it has groups."""
    timeout_s: float = Field(5.0, gt=0)
    """Limit of one check. A check that exceeds it is undecided, not wrong."""
    workers: int = Field(1, gt=0)
    """Processes that check answers."""

    @model_validator(mode="after")
    def _pattern_where_it_is_used(self) -> "Correctness":
        if self.how == "regex" and not self.pattern:
            raise ValueError("correctness.how=regex needs correctness.pattern, e.g. 'answer is ([^.]+)\\.'")
        if self.pattern and self.how != "regex":
            raise ValueError(
                f"correctness.pattern is used by how=regex alone, and how is {self.how}; set how=regex, "
                "or take the pattern out"
            )
        try:
            re.compile(self.pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"correctness.pattern={self.pattern!r} does not compile: {error}") from error
        return self


class Efficiency(Section):
    """What a correct trajectory pays for its calls (reward `tool_efficiency`)."""

    per_call: float = Field(0.1, ge=0)
    """Cost of each executed call beyond the free ones."""
    free_calls: int = Field(1, ge=0)
    """The first so many calls cost nothing by their number."""
    per_second: float = Field(0.0, ge=0)
    """Cost of a second of wall time in tools, of all calls. Unlike all else here it is not the same in two
    runs of one seed."""
    redundant: float = Field(0.0, ge=0)
    """Further cost of a call that repeats an earlier one."""
    unused: float = Field(0.0, ge=0)
    """Further cost of a call that passed, and of whose result nothing is taken up later."""
    after_answer: float = Field(0.0, ge=0)
    """Further cost of a call behind the final answer."""
    most: float = Field(0.5, ge=0)
    """All costs of a trajectory together are at most this. Times its weight it must be less than what a
    right answer gains over a wrong one."""


class Overlong(Section):
    buffer_ratio: float = Field(0.2, gt=0, le=1)
    """The last so much of rollout.max_completion_tokens is where the reward `overlong` falls from 0 to -1
    (DAPO: 0.2)."""


class Soundness(Section):
    checks: list[str] = Field(list(CHECKS))
    """The checks that the reward `soundness` makes (docs/rewards.md); each is a part, -1 where violated."""

    @field_validator("checks")
    @classmethod
    def _known(cls, names: list[str]) -> list[str]:
        for name in names:
            if name not in CHECKS:
                raise ValueError(
                    f"soundness.checks: no check named {name!r}.{nearest(name, list(CHECKS))} "
                    f"Known: {', '.join(CHECKS)}"
                )
        if not names or len(set(names)) < len(names):
            raise ValueError("soundness.checks: name at least one check, and none of them twice")
        return names


class LLMJudge(Section):
    """The endpoint that the reward `judge` asks."""

    base_url: str = ""
    """Address of an OpenAI-compatible API, up to and without /chat/completions,
    e.g. http://localhost:8000/v1."""
    model: str = ""
    """The model that judges, by the name that the endpoint knows."""
    api_key_env: str = ""
    """Name of the environment's variable that holds the API key ("": none is sent). The key itself never
    stands in a recipe."""
    rubric: str = ""
    """What is asked, with {problem}, {answer} and {response} in it ("": the soundness of the reasoning)."""
    low: float = 0.0
    """The rubric's worst score; the reward of it is 0."""
    high: float = 10.0
    """The rubric's best score; the reward of it is 1."""
    temperature: float | None = Field(0.0, ge=0)
    """Sent with each request (none: not sent, for endpoints that refuse it)."""
    max_tokens: int = Field(1024, gt=0)
    """Length of the judge's answer."""
    timeout_s: float = Field(60.0, gt=0)
    """Limit of one request."""
    retries: int = Field(3, ge=0)
    """How often a request that failed, or whose answer holds no score, is made again."""
    backoff_s: float = Field(1.0, ge=0)
    """Pause before the first retry after a failure; doubled for each further one, 60 s at most."""
    max_concurrent: int = Field(8, gt=0)
    """Requests under way at once."""
    max_requests: int = Field(0, ge=0)
    """Training stops, saved, before it makes more requests than this, retries included (0: no limit).
    Counted anew by --resume."""
    max_total_tokens: int = Field(0, ge=0)
    """The same for the tokens that the endpoint says it has used. Requests that are under way when it is
    reached still count."""

    @field_validator("base_url")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        parts = urlsplit(value)
        if value and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ValueError("llm_judge.base_url must begin with http:// or https:// and name a host")
        if parts.username or parts.password:
            raise ValueError(
                "llm_judge.base_url holds a user name or password, which would be written to the run's "
                "files; give a key by llm_judge.api_key_env"
            )
        return value.rstrip("/").removesuffix("/chat/completions")

    @field_validator("api_key_env")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        if value and not re.fullmatch(r"[A-Z][A-Z0-9_]*", value):  # not repeated: a secret
            raise ValueError(
                "llm_judge.api_key_env is not the name of a variable of the environment (capital letters, "
                "digits, _), e.g. JUDGE_API_KEY; a key itself must not stand in a recipe, which is kept in "
                "the run's folder"
            )
        return value

    @field_validator("rubric")
    @classmethod
    def _shows_the_response(cls, value: str) -> str:
        if value and "{response}" not in value:
            raise ValueError(
                "llm_judge.rubric must have {response} in it (and may have {problem} and {answer})"
            )
        return value

    @model_validator(mode="after")
    def _scale(self) -> "LLMJudge":
        if self.low >= self.high:
            raise ValueError(f"llm_judge.low={self.low:g} must be less than llm_judge.high={self.high:g}")
        return self


def check_rewards(
    rewards: Mapping[str, float], correctness: Correctness, efficiency: Efficiency, judge: LLMJudge
) -> None:
    """Raises ValueError, with the remedy, for rewards that lack what they need."""
    if "tool_efficiency" in rewards:
        _check_bound(rewards, correctness, efficiency)
    if "judge" in rewards and not (judge.base_url and judge.model):
        raise ValueError("rewards.judge needs llm_judge.base_url and llm_judge.model: whom to ask")


def _check_bound(rewards: Mapping[str, float], correctness: Correctness, efficiency: Efficiency) -> None:
    """No cost may make a right answer worth less than a wrong one: that would teach to be wrong."""
    if "correctness" not in rewards:
        raise ValueError(
            "rewards.tool_efficiency needs correctness beside it: only right answers pay for their calls"
        )
    gain = rewards["correctness"] * (correctness.right - correctness.wrong)
    most = rewards["tool_efficiency"] * efficiency.most
    if most >= gain:
        raise ValueError(
            f"efficiency.most={efficiency.most:g}, with the weight {rewards['tool_efficiency']:g}, is not "
            f"less than the {gain:g} that a right answer gains over a wrong one (correctness.right - "
            "correctness.wrong, with its weight): a wrong answer could be worth more. Lower efficiency.most"
        )
