"""From a task to prompt ids. Which template is used is the recipe's choice."""

import logging
from collections.abc import Callable, Iterable
from importlib import resources
from pathlib import Path
from typing import Any

from torl import config
from torl.errors import UserError
from torl.imports import nearest
from torl.tokens import Vocabulary
from torl.types import Task

log = logging.getLogger("torl")

Encode = Callable[[Task], list[int]]
"""From a task to the ids that the policy is given."""

INSTRUCTION = (
    "Please integrate natural language reasoning with programs to solve the problem, "
    "and put your final answer within \\boxed{}."
)
INSTRUCTION_NO_TOOLS = "Please reason step by step, and put your final answer within \\boxed{}."

_PLACE = "\ue000"  # private use: stands for the problem while a chat template is rendered


def prompt_encoder(prompt: config.Prompt, vocabulary: Vocabulary, tools: bool) -> Encode:
    """The function from a task to prompt ids that a recipe's ``prompt`` section asks for.

    ``tools`` chooses between the variants of a template that has one without tools. Special
    tokens that a template spells are special; those that a problem spells are plain text.
    Raises UserError for an unknown template, or one without a place for the problem.
    """
    tokenizer = vocabulary.tokenizer

    def go_on(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False).input_ids)

    if prompt.template == "chat":
        system = prompt.system or (INSTRUCTION if tools else INSTRUCTION_NO_TOOLS)
        before, after = _chat_frame(tokenizer, system)
        begin = go_on  # the template writes the special tokens itself: none is added again
    else:
        before, _, after = template_text(prompt.template, tools).partition("{problem}")
        begin = vocabulary.encode_prompt
    added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.content.strip()]

    def encode(task: Task) -> list[int]:
        problem = task.problem.strip()
        if any(token in problem for token in added):
            return [*begin(before), *vocabulary.encode(problem), *go_on(after)]
        return begin(before + problem + after)

    return encode


def template_text(name: str, tools: bool) -> str:
    """The text of a built-in template, or of the file at that path, with {problem} in it."""
    folder = resources.files("torl.rollout") / "prompts"
    variants = [f"{name}.txt"] if tools else [f"{name}-no-tools.txt", f"{name}.txt"]
    files = [folder / variant for variant in variants] if "/" not in name else []
    found = next((f for f in files if f.is_file()), None)
    if found is None and not Path(name).is_file():
        names = {f.name.removesuffix(".txt").removesuffix("-no-tools") for f in folder.iterdir()}
        known = [*sorted(names), "chat"]
        raise UserError(
            f"prompt.template={name!r} is neither a template nor a file."
            f"{nearest(name, known)} "
            f"Templates: {', '.join(known)}; or the path of a text file with {{problem}} in it"
        )
    try:
        text = (found or Path(name)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"prompt.template={name!r} cannot be read ({error}); it must be a text file in UTF-8"
        ) from error
    if text.count("{problem}") != 1:
        raise UserError(
            f"prompt.template={name!r} must hold {{problem}} exactly once, where the problem goes"
        )
    return text


def _chat_frame(tokenizer: Any, system: str) -> tuple[str, str]:
    """What the tokenizer's chat template writes before and behind the user's problem.

    Where the template knows no system message, ``system`` begins the user's.
    """
    if not tokenizer.chat_template:
        raise UserError(
            "prompt.template=chat, but this model's tokenizer has no chat template; "
            "use prompt.template=torl (base models) or worked-examples"
        )

    def render(*messages: dict[str, str]) -> str:
        return str(
            tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
        )

    try:
        text = render({"role": "system", "content": system}, {"role": "user", "content": _PLACE})
    except Exception:  # templates raise what they like, e.g. for a role they do not know
        text = ""
    try:
        if system.strip() not in text:
            text = render({"role": "user", "content": f"{system}\n\n{_PLACE}"})
    except Exception as error:
        raise UserError(f"prompt.template=chat: this model's chat template failed: {error}") from error
    if text.count(_PLACE) != 1:
        raise UserError(
            "prompt.template=chat: this model's chat template does not show the problem exactly once; "
            "write a template of your own: prompt.template=PATH of a text file with {problem} in it"
        )
    before, _, after = text.partition(_PLACE)
    return before, after


def fitting(
    tasks: Iterable[Task], encode: Encode, prompt: config.Prompt, completion_tokens: int, context: int
) -> list[Task]:
    """The tasks whose prompt is at most ``prompt.max_tokens`` long. How many are not is logged.

    Raises UserError, naming the first, when a prompt and the completion's budget together
    exceed the model's context.
    """
    kept, dropped = [], 0
    for task in tasks:
        length = len(encode(task))
        if prompt.max_tokens is not None and length > prompt.max_tokens:
            dropped += 1
            continue
        if length + completion_tokens > context:
            raise UserError(
                f"task {task.id}: its prompt has {length} tokens; with rollout.max_completion_tokens="
                f"{completion_tokens} that exceeds the model's context of {context}. Lower the budget, or "
                f"set prompt.max_tokens={context - completion_tokens} to drop tasks with longer prompts"
            )
        kept.append(task)
    if dropped and not kept:
        raise UserError(f"prompt.max_tokens={prompt.max_tokens} drops every task; raise it")
    if dropped:
        log.warning(
            "prompt.max_tokens=%s drops %d of %d tasks", prompt.max_tokens, dropped, dropped + len(kept)
        )
    return kept
