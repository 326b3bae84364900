"""``torl chat``: each question is one episode, and its tool calls really run."""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.text import Text

from torl.cli.shared import ModelOrRun, Overrides, RecipeOption, complain, console, no_progress_bars, say
from torl.cli.target import Target, target_of
from torl.config import Recipe
from torl.errors import UserError, WorldFault
from torl.types import Completion, StopReason, Task, Trajectory

if TYPE_CHECKING:
    from torl.parts import Parts
    from torl.samplers.base import SamplingParams, Session
    from torl.tokens import Vocabulary

CHAT = 2  # first number of a conversation's random streams; training's is 0, an evaluation's 1
ENDS = ("exit", "quit")


def chat(
    model_or_run: ModelOrRun,
    overrides: Overrides = None,
    recipe: RecipeOption = None,
) -> None:
    """Talk to a model; its tool calls really run."""
    target = target_of(model_or_run, recipe, overrides)
    from torl.parts import build
    from torl.tasks import TaskSets

    no_progress_bars()
    parts = build(target.recipe, tasks=TaskSets(train=[], test={}), model=target.model)
    conversation = Conversation(parts, target.recipe)
    _greet(target, conversation)
    with asyncio.Runner() as runner:  # the prompt waits outside of the loop, where Ctrl-C is plain
        try:
            runner.run(parts.start())
            for question in _questions():
                _answer(runner, conversation, question)
        finally:
            runner.run(parts.close())


def _greet(target: Target, conversation: "Conversation") -> None:
    tools = ", ".join(conversation.parts.agent.tools) or "none"
    say(f"{target.name} · tools: {tools} · Ctrl-D or exit to end", "bold")
    if conversation.history is None:
        template = target.recipe.prompt.template
        say(f"Each question stands alone: the prompt template {template} has no place for earlier ones.")


def _questions() -> Iterator[str]:
    """Lines of the terminal, or of a pipe, until the end or "exit"."""
    terminal = sys.stdin.isatty()
    if terminal:
        with suppress(ImportError):
            import readline  # noqa: F401 - gives input() a history
    while True:
        try:
            line = input("\n> " if terminal else "").strip()
        except (EOFError, KeyboardInterrupt):
            say("")
            return
        if line.lower() in ENDS:
            return
        if line:
            if not terminal:
                say(f"\n> {line}")
            yield line


def _answer(runner: asyncio.Runner, conversation: "Conversation", question: str) -> None:
    """One question. What goes wrong with it does not end the conversation."""
    try:
        trajectory = runner.run(conversation.ask(question))
        say(_footer(trajectory, conversation.recipe), "dim")
    except (UserError, WorldFault) as error:
        complain(str(error))
    except KeyboardInterrupt:
        say("\n[stopped]", "dim")


def _footer(trajectory: Trajectory, recipe: Recipe) -> str:
    calls = ", ".join(call.status for call in trajectory.calls) or "none"
    cut = ""
    if trajectory.truncated:
        cut = f" · cut off by rollout.max_completion_tokens={recipe.rollout.max_completion_tokens}"
    return f"\n[{len(trajectory.ids)} tokens · {trajectory.seconds:.1f} s · calls: {calls}{cut}]"


class Conversation:
    """Episodes of one model as it is evaluated (greedy), one after the other.

    ``history`` holds the messages so far where the prompt is the tokenizer's chat template; it
    is None with the other templates, which know of one question only.
    """

    def __init__(self, parts: "Parts", recipe: Recipe) -> None:
        from torl.parts import context_length

        self.parts = parts
        self.recipe = recipe
        self.history: list[dict[str, str]] | None = [] if recipe.prompt.template == "chat" else None
        self._context = context_length(parts.model.name_or_path)
        self._agent = replace(parts.evaluated, encode_prompt=self._encode)
        self._asked = 0

    async def ask(self, question: str) -> Trajectory:
        """Plays one episode and shows it as it happens. Raises UserError for a question that is
        too long, WorldFault when the world failed."""
        from torl.rollout.agent import run_episode

        task = Task(f"chat/{self._asked}", question, "")
        self._asked += 1
        prompt = self._fitted(task)
        session = self._agent.sampler.open(prompt, [(CHAT, self.recipe.seed, self._asked)])[0]
        try:
            shown = ShownSession(session, self._agent.vocabulary)
            trajectory = await run_episode(self._agent, task, 0, shown, prompt)
        finally:
            session.close()
        self._remember(trajectory)
        return trajectory

    def _fitted(self, task: Task) -> list[int]:
        """The prompt, for which the oldest exchanges are forgotten when the context is full."""
        room = self._context - self.recipe.rollout.max_completion_tokens
        while len(prompt := self._encode(task)) > room:
            if not self.history:
                raise UserError(f"the question is too long: {len(prompt)} tokens, with room for {room}")
            del self.history[:2]
        return prompt

    def _encode(self, task: Task) -> list[int]:
        if not self.history:  # the first question is asked as in training
            return self.parts.agent.encode_prompt(task)
        from torl.rollout.prompt import INSTRUCTION, INSTRUCTION_NO_TOOLS

        instruction = INSTRUCTION if self.parts.agent.tools else INSTRUCTION_NO_TOOLS
        system = {"role": "system", "content": self.recipe.prompt.system or instruction}
        messages = [system, *self.history, {"role": "user", "content": task.problem}]
        tokenizer = self.parts.tokenizer
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return list(tokenizer(text, add_special_tokens=False).input_ids)

    def _remember(self, trajectory: Trajectory) -> None:
        if self.history is None:
            return
        ended = trajectory.stop_reason is StopReason.END  # the template writes the end itself
        ids = trajectory.ids[:-1] if ended else trajectory.ids
        answer = self.parts.agent.vocabulary.decode(ids)
        self.history.append({"role": "user", "content": trajectory.task.problem})
        self.history.append({"role": "assistant", "content": answer})


class ShownSession:
    """A session that shows what passes through it: turns as they are sampled, and observations."""

    def __init__(self, session: "Session", vocabulary: "Vocabulary") -> None:
        self._session = session
        self._vocabulary = vocabulary

    async def sample(self, stop: list[str], max_tokens: int, params: "SamplingParams") -> Completion:
        completion = await self._session.sample(stop, max_tokens, params)
        ended = completion.stop_reason is StopReason.END
        ids = completion.ids[:-1] if ended else completion.ids
        console.print(_coloured(completed=self._vocabulary.decode(ids)), end="", soft_wrap=True)
        return completion

    def append(self, ids: Sequence[int]) -> None:
        console.print(_coloured(observed=self._vocabulary.decode(list(ids))), end="", soft_wrap=True)
        self._session.append(ids)

    def close(self) -> None:
        self._session.close()


def _coloured(completed: str = "", observed: str = "") -> Text:
    """A turn, or an observation, in the colours of ``torl show``."""
    from torl.insight.render import coloured

    turn = Trajectory(Task("", "", ""), 0, prompt_ids=[])
    turn.append_completion(Completion([], [], StopReason.STOP), completed)
    if observed:
        turn.append_observation([], observed)
    return coloured(turn)
