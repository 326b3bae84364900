"""From a task to prompt ids: templates, special tokens, and what is said of those that cannot be."""

import logging
from pathlib import Path
from typing import Any

import pytest
from tiny import SPECIAL, byte_level_tokenizer, sentencepiece_tokenizer

from torl.config import Prompt
from torl.errors import UserError
from torl.rollout.prompt import INSTRUCTION, INSTRUCTION_NO_TOOLS, fitting, prompt_encoder, template_text
from torl.tokens import Vocabulary
from torl.types import Task

TASK = Task("add/7", "  What is 12 * 31?\n", "372")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML
DROPS_SYSTEM = CHATML.replace("{% for m in messages %}", "{% for m in messages if m.role != 'system' %}")
WITH_BOS = "{{ bos_token }}{% for m in messages %}{{ m.content }}\n{% endfor %}A:"


def vocabulary_of(tokenizer: Any, chat_template: str | None = None) -> Vocabulary:
    tokenizer.chat_template = chat_template
    return Vocabulary(tokenizer)


def bytes_vocabulary(chat_template: str | None = None) -> Vocabulary:
    return vocabulary_of(byte_level_tokenizer(), chat_template)


def text_of(prompt: Prompt, vocabulary: Vocabulary, task: Task = TASK, tools: bool = True) -> str:
    return vocabulary.decode(prompt_encoder(prompt, vocabulary, tools)(task))


def with_bos(tokenizer: Any) -> Any:
    """As Llama's tokenizers do, it begins a text with <s>."""
    from tokenizers.processors import TemplateProcessing

    number = tokenizer.convert_tokens_to_ids("<s>")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", number)]
    )
    return tokenizer


# The templates.


@pytest.mark.parametrize("tools", [True, False])
def test_torl_is_the_papers_text(tools: bool) -> None:
    """Its odd order included: "the problem above" stands before the problem."""
    assert text_of(Prompt(template="torl"), bytes_vocabulary(), tools=tools) == (
        "A conversation between User and Assistant. "
        "The user asks a question, and the Assistant solves it.\n"
        "User: Please integrate natural language reasoning with programs to solve the problem above, "
        "and put your final answer within \\boxed{}.\n"
        "What is 12 * 31?\n"
        "Assistant:\n"
    )


def test_worked_examples_with_and_without_tools() -> None:
    with_tools = text_of(Prompt(), bytes_vocabulary())
    without = text_of(Prompt(), bytes_vocabulary(), tools=False)
    assert with_tools.count("```output\n") == 2
    assert "```" not in without
    for text in (with_tools, without):
        assert text.endswith("\n\nUser: What is 12 * 31?\nAssistant:")
        assert text.count("\\boxed{") == 2


def test_a_file_is_a_template(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("Frage: {problem}\nAntwort:", encoding="utf-8")
    assert text_of(Prompt(template=str(path)), bytes_vocabulary()) == "Frage: What is 12 * 31?\nAntwort:"


def test_a_file_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").write_text("{problem}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert template_text("mine", tools=True) == "{problem}"


@pytest.mark.parametrize("text", ["no place", "{problem} and {problem}", ""])
def test_a_template_has_one_place_for_the_problem(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"must hold \{problem\} exactly once"):
        template_text(str(path), tools=True)


def test_a_template_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_bytes(b"\xff\xfe{problem}")
    with pytest.raises(UserError, match="UTF-8"):
        template_text(str(path), tools=True)


@pytest.mark.parametrize("name", ["worked_examples", "", "no/such/file.txt", "../torl", "."])
def test_unknown_names_get_the_choices(name: str) -> None:
    with pytest.raises(UserError, match=r"Templates: torl, worked-examples, chat; or the path"):
        template_text(name, tools=True)


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(UserError, match=r"Did you mean worked-examples\?"):
        template_text("worked_example", tools=True)


@pytest.mark.parametrize("template", ["torl", "worked-examples"])
def test_braces_of_a_problem_are_its_own(template: str) -> None:
    task = Task("t", "Say {problem} and {} and {0} \\boxed{problem}.", "x")
    text = text_of(Prompt(template=template), bytes_vocabulary(), task)
    assert text.count("Say {problem} and {} and {0} \\boxed{problem}.") == 1


def test_a_plain_problem_is_tokenised_with_its_template() -> None:
    """In one piece, so that "User: What" has the ids that the model knows it by."""
    vocabulary = bytes_vocabulary()
    text = text_of(Prompt(), vocabulary)
    assert prompt_encoder(Prompt(), vocabulary, True)(TASK) == list(vocabulary.tokenizer(text).input_ids)


# Special tokens: a template's are special, a problem's are text.


@pytest.mark.parametrize("spelled", ["<|im_end|>", "<|endoftext|>a<|im_start|>", "<tool_call>"])
@pytest.mark.parametrize("template", ["torl", "worked-examples", "chat", "file"])
def test_special_text_of_a_problem_is_text(template: str, spelled: str, tmp_path: Path) -> None:
    path = tmp_path / "chatml.txt"
    path.write_text("<|im_start|>user\n{problem}<|im_end|>\n<|im_start|>assistant\n", encoding="utf-8")
    prompt = Prompt(template=str(path) if template == "file" else template)
    vocabulary = bytes_vocabulary(CHATML)
    added = set(vocabulary.tokenizer.added_tokens_decoder)
    encode = prompt_encoder(prompt, vocabulary, True)
    plain, odd = encode(Task("t", "Say x.", "x")), encode(Task("t", f"Say {spelled}.", "x"))
    assert vocabulary.decode(odd) == vocabulary.decode(plain).replace("Say x.", f"Say {spelled}.")
    assert [i for i in odd if i in added] == [i for i in plain if i in added]
    assert bool(added & set(odd)) == (template in ("chat", "file"))


def test_a_bos_is_put_once_before_a_template() -> None:
    vocabulary = vocabulary_of(with_bos(sentencepiece_tokenizer()), WITH_BOS)
    bos = vocabulary.tokenizer.bos_token_id
    for template in ("torl", "chat"):
        for problem in ("What?", "What is </s>?"):
            ids = prompt_encoder(Prompt(template=template), vocabulary, True)(Task("t", problem, "x"))
            assert ids[0] == bos
            assert ids.count(bos) == 1
            assert vocabulary.tokenizer.eos_token_id not in ids


# The tokenizer's own chat template.


def test_chat_template_of_the_tokenizer() -> None:
    vocabulary = bytes_vocabulary(CHATML)
    assert text_of(Prompt(template="chat"), vocabulary) == (
        f"<|im_start|>system\n{INSTRUCTION}<|im_end|>\n"
        "<|im_start|>user\nWhat is 12 * 31?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert INSTRUCTION_NO_TOOLS in text_of(Prompt(template="chat"), vocabulary, tools=False)
    mine = text_of(Prompt(template="chat", system="Be {problem} brief."), vocabulary)
    assert mine.startswith("<|im_start|>system\nBe {problem} brief.<|im_end|>")
    ids = prompt_encoder(Prompt(template="chat"), vocabulary, True)(TASK)
    start = vocabulary.tokenizer.convert_tokens_to_ids(SPECIAL[1])
    assert ids.count(start) == 3


@pytest.mark.parametrize("chat_template", [NO_SYSTEM, DROPS_SYSTEM])
def test_a_chat_template_without_a_system_message(chat_template: str) -> None:
    text = text_of(Prompt(template="chat"), bytes_vocabulary(chat_template))
    assert text == (
        f"<|im_start|>user\n{INSTRUCTION}\n\nWhat is 12 * 31?<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("chat_template", "says"),
    [
        (None, "has no chat template"),
        ("{{ raise_exception('never') }}", "failed: never"),
        ("{% for m in messages %}{{ m.role }}{% endfor %}", "exactly once"),
        ("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", "exactly once"),
        ("{% if %}", "failed"),
    ],
)
def test_chat_templates_that_cannot_be_used(chat_template: str | None, says: str) -> None:
    with pytest.raises(UserError, match=says):
        prompt_encoder(Prompt(template="chat"), bytes_vocabulary(chat_template), True)


# Lengths.

TASKS = [Task(f"t/{n}", "x" * n, "x") for n in (5, 50, 500)]


def encode(task: Task) -> list[int]:
    return [0] * len(task.problem)


def test_longer_prompts_are_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "torl"):
        kept = fitting(TASKS, encode, Prompt(max_tokens=50), completion_tokens=10, context=60)
    assert [t.id for t in kept] == ["t/5", "t/50"]
    assert [r.getMessage() for r in caplog.records] == ["prompt.max_tokens=50 drops 1 of 3 tasks"]


def test_tasks_that_fit_are_kept_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    assert fitting(TASKS, encode, Prompt(), completion_tokens=10, context=510) == TASKS
    assert fitting([], encode, Prompt(max_tokens=1), completion_tokens=10, context=510) == []
    assert not caplog.records


def test_a_prompt_beyond_the_context_is_named() -> None:
    with pytest.raises(
        UserError, match=r"task t/500: its prompt has 500 tokens.*set prompt\.max_tokens=499"
    ):
        fitting(TASKS, encode, Prompt(), completion_tokens=10, context=509)


def test_a_limit_that_drops_every_task() -> None:
    with pytest.raises(UserError, match=r"prompt\.max_tokens=4 drops every task"):
        fitting(TASKS, encode, Prompt(max_tokens=4), completion_tokens=10, context=510)
