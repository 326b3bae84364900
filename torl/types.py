"""The data of one training step, in the order in which it flows.

    Task ─▶ Completion ─▶ ToolCall ─▶ ToolResult ─▶ Turn ─▶ Trajectory ─▶ Group

Tokens are the truth. A trajectory holds ids, and for each id whether it trains, the
log-probability with which it was sampled, and the policy version that sampled it. Text is
derived from ids when a turn is recorded; it is never tokenised again.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from torl.errors import Bug


@dataclass(frozen=True)
class Task:
    """One problem: what the policy is asked, and what the reward needs.

    Example: ``Task(id="add/7", problem="What is 12 * 31?", answer="372", kind="arithmetic")``.
    """

    id: str
    problem: str
    answer: str
    kind: str = ""  # a label to split metrics by, e.g. the generator or the benchmark
    meta: dict[str, Any] = field(default_factory=dict)  # anything a reward function wants


class StopReason(StrEnum):
    """Why a completion, or a whole trajectory, came to its end."""

    END = "end"  # the policy sampled an end-of-turn id (it trains)
    STOP = "stop"  # the text came to one of the stop strings
    LENGTH = "length"  # the token budget was used up: the trajectory was cut off
    TOOL = "tool"  # a tool ended the episode, or the limit on requests past the last call did


@dataclass
class Completion:
    """Ids sampled in one turn. All lists have one length, the number of sampled ids."""

    ids: list[int]
    logprobs: list[float]  # natural log, under the distribution the id was really drawn from
    stop_reason: StopReason
    stop: str | None = None  # which stop string, when stop_reason is STOP
    version: int = 0  # the policy version that sampled these ids


@dataclass(frozen=True)
class ToolCall:
    """What the policy asked for, e.g. ``ToolCall("python", "print(12 * 31)")``."""

    name: str
    text: str  # what stood inside the fence


@dataclass
class ToolResult:
    """What a tool answered. ``status`` is "ok" or the kind of the model's mistake
    ("error", "timeout", "malformed", "no_calls_left", ...). A fault of the world is an
    exception (errors.WorldFault), never a result."""

    text: str  # shown to the policy, before truncation to the observation budget
    status: str = "ok"
    run_s: float = 0.0  # wall seconds the call itself took
    queue_s: float = 0.0  # wall seconds it waited for a worker; never charged to its time limit
    stop: bool = False  # the tool ends the episode
    executed: bool = True  # False when nothing ran: a malformed call, or no calls left

    @property
    def ok(self) -> bool:
        return self.status == "ok"


@dataclass
class Turn:
    """One completion and the observation that answered it, as spans of ``Trajectory.ids``.

    ``ids[start:end]`` was sampled, ``ids[end:observation_end]`` was appended.
    """

    start: int
    end: int
    observation_end: int
    text: str  # the completion, decoded
    stop_reason: StopReason
    observation: str = ""  # the text of the appended ids
    call: ToolCall | None = None
    result: ToolResult | None = None


@dataclass
class Trajectory:
    """One episode of one task. The five lists after ``ids`` have the length of ``ids``.

    Example, a prompt of 3 ids, one call, and the answer::

        ids              = [c c c o o c c]       c sampled, o observation
        loss_mask        = [1 1 1 0 0 1 1]       1 on ids that train
        sampled          = [1 1 1 0 0 1 1]       1 on ids the policy sampled
        sampler_logprobs = [. . . 0 0 . .]       0.0 on observations
        versions         = [4 4 4 -1 -1 4 4]     -1 on observations

    ``loss_mask`` is at most ``sampled``: an output block that the policy invented was
    sampled and does not train.
    """

    task: Task
    sample: int  # its number within the group
    prompt_ids: list[int]
    ids: list[int] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)
    sampled: list[int] = field(default_factory=list)
    sampler_logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    stop_reason: StopReason = StopReason.LENGTH
    reward: float | None = None  # None until judged
    reward_parts: dict[str, float] = field(default_factory=dict)
    correct: bool | None = None  # the verifier's verdict, whatever the reward's weights
    answer: str | None = None  # the final answer found outside code and observations
    advantage: float = 0.0
    invented_outputs: int = 0  # output blocks the policy wrote itself
    seconds: float = 0.0  # wall time of the episode

    @property
    def id(self) -> str:
        """Names the trajectory in errors and logs."""
        return f"{self.task.id}#{self.sample}"

    @property
    def truncated(self) -> bool:
        return self.stop_reason is StopReason.LENGTH

    @property
    def calls(self) -> list[ToolResult]:
        """The results of all calls that the policy asked for, in order."""
        return [turn.result for turn in self.turns if turn.result is not None]

    @property
    def policy_text(self) -> str:
        """All that the policy wrote, in order; observations left out."""
        return "".join(turn.text for turn in self.turns)

    @property
    def text(self) -> str:
        """The episode as it stood in the context, observations included."""
        return "".join(turn.text + turn.observation for turn in self.turns)

    def append_completion(self, completion: Completion, text: str) -> Turn:
        """Records sampled ids as a new turn. Raises Bug when the lengths disagree."""
        n = len(completion.ids)
        if len(completion.logprobs) != n:
            raise Bug(f"{self.id}: {n} ids sampled with {len(completion.logprobs)} logprobs")
        start = len(self.ids)
        self.ids += completion.ids
        self.loss_mask += [1] * n
        self.sampled += [1] * n
        self.sampler_logprobs += completion.logprobs
        self.versions += [completion.version] * n
        self.turns.append(Turn(start, start + n, start + n, text, stop_reason=completion.stop_reason))
        return self.turns[-1]

    def append_observation(self, ids: list[int], text: str) -> None:
        """Records appended ids as the answer to the last turn. They never train."""
        n = len(ids)
        self.ids += ids
        self.loss_mask += [0] * n
        self.sampled += [0] * n
        self.sampler_logprobs += [0.0] * n
        self.versions += [-1] * n
        self.turns[-1].observation_end = len(self.ids)
        self.turns[-1].observation = text

    def check(self) -> None:
        """Raises Bug, naming the trajectory, when an invariant above does not hold."""
        n = len(self.ids)
        lengths = {
            "loss_mask": len(self.loss_mask),
            "sampled": len(self.sampled),
            "sampler_logprobs": len(self.sampler_logprobs),
            "versions": len(self.versions),
        }
        wrong = {name: length for name, length in lengths.items() if length != n}
        if wrong:
            raise Bug(f"{self.id}: {n} ids, but {wrong}")
        rows = zip(self.loss_mask, self.sampled, self.versions, strict=True)
        if any(mask > sampled or sampled != (version >= 0) for mask, sampled, version in rows):
            raise Bug(f"{self.id}: an id that was not sampled would train")


@dataclass
class Group:
    """The trajectories of one task that are judged against each other (size G)."""

    task: Task
    trajectories: list[Trajectory]
    dropped: int = 0  # trajectories lost to the world's faults, after retries

    @property
    def rewards(self) -> list[float]:
        rewards = [t.reward for t in self.trajectories]
        if any(r is None for r in rewards):
            raise Bug(f"{self.task.id}: a trajectory without a reward reached the advantage")
        return [float(r) for r in rewards if r is not None]
