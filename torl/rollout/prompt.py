"""From a task to prompt ids. Which template is used is the recipe's choice."""

from collections.abc import Callable, Iterable
from importlib import resources
from pathlib import Path

from torl import config
from torl.errors import UserError
from torl.tokens import Vocabulary
from torl.types import Task

Encode = Callable[[Task], list[int]]
"""From a task to the ids that the policy is given."""

INSTRUCTION = (
    "Please integrate natural language reasoning with programs to solve the problem, "
    "and put your final answer within \\boxed{}."
)


def prompt_encoder(prompt: config.Prompt, vocabulary: Vocabulary, tools: bool) -> Encode:
    """The function from a task to prompt ids that a recipe's ``prompt`` section asks for.

    ``tools`` chooses between the variants of a template that has one without tools.
    Raises UserError for an unknown template, or one without a place for the problem.
    """
    if prompt.template == "chat":
        return _chat_encoder(vocabulary, prompt.system or INSTRUCTION)
    text = template_text(prompt.template, tools)
    before, _, after = text.partition("{problem}")
    return lambda task: vocabulary.encode_prompt(before + task.problem.strip() + after)


def template_text(name: str, tools: bool) -> str:
    """The text of a built-in template, or of the file at that path, with {problem} in it."""
    folder = resources.files("torl.rollout") / "prompts"
    variants = [f"{name}.txt"] if tools else [f"{name}-no-tools.txt", f"{name}.txt"]
    files = [folder / variant for variant in variants] if "/" not in name else []
    found = next((f for f in files if f.is_file()), None)
    if found is None and not Path(name).is_file():
        known = sorted(
            f.name.removesuffix(".txt") for f in folder.iterdir() if not f.name.endswith("-no-tools.txt")
        )
        raise UserError(
            f"prompt.template={name!r} is neither a template nor a file. "
            f"Templates: {', '.join([*known, 'chat'])}; or the path of a text file with {{problem}} in it"
        )
    text = found.read_text(encoding="utf-8") if found else Path(name).read_text(encoding="utf-8")
    if text.count("{problem}") != 1:
        raise UserError(
            f"prompt.template={name!r} must hold {{problem}} exactly once, where the problem goes"
        )
    return text


def _chat_encoder(vocabulary: Vocabulary, system: str) -> Encode:
    tokenizer = vocabulary.tokenizer
    if not tokenizer.chat_template:
        raise UserError(
            "prompt.template=chat, but this model's tokenizer has no chat template; "
            "use prompt.template=torl (base models) or worked-examples"
        )

    def encode(task: Task) -> list[int]:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": task.problem}]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        # The template writes the special tokens itself: none may be added a second time.
        return list(tokenizer(text, add_special_tokens=False).input_ids)

    return encode


def fitting(
    tasks: Iterable[Task], encode: Encode, prompt: config.Prompt, completion_tokens: int, context: int
) -> list[Task]:
    """The tasks whose prompt is at most ``prompt.max_tokens`` long.

    Raises UserError, naming the first, when a prompt and the completion's budget together
    exceed the model's context.
    """
    kept = []
    for task in tasks:
        length = len(encode(task))
        if prompt.max_tokens is not None and length > prompt.max_tokens:
            continue
        if length + completion_tokens > context:
            raise UserError(
                f"task {task.id}: its prompt has {length} tokens; with rollout.max_completion_tokens="
                f"{completion_tokens} that exceeds the model's context of {context}. Lower the budget, or "
                f"set prompt.max_tokens={context - completion_tokens} to drop tasks with longer prompts"
            )
        kept.append(task)
    if not kept:
        raise UserError(f"prompt.max_tokens={prompt.max_tokens} drops every task; raise it")
    return kept
