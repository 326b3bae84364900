"""Finds the problem and the answer in a row of a data set, whatever its columns are called.

Recognised, in this order of preference and in upper or lower case:

- the problem: ``problem``, ``question``, ``prompt``, ``input``, ``query``; after ``context``
  or ``body`` where a row has one (SVAMP). A prompt may be a list of messages: the last user
  message counts (ToRL's own data).
- the answer: ``reward_model`` with a ``ground_truth`` (ToRL), ``answer``, ``final_answer``,
  ``target``, ``ground_truth``, ``label``, ``solution``. Of a worked solution only the final
  answer counts: what follows ``####`` (GSM8K), or the last ``\\boxed{}`` (MATH, Minerva).
"""

import math
import re
from typing import Any

from torl.errors import UserError

PROBLEM_COLUMNS = ("problem", "question", "prompt", "input", "query")
CONTEXT_COLUMNS = ("context", "body")
ANSWER_COLUMNS = (
    "reward_model",
    "answer",
    "final_answer",
    "target",
    "ground_truth",
    "label",
    "solution",
)

Row = dict[str, Any]


def read_row(row: Row, where: str) -> tuple[str, str, Row]:
    """Gives problem, answer and the other columns. ``where`` names file and line in errors."""
    columns = {name.lower(): name for name in row}
    problem_column = _find(PROBLEM_COLUMNS, columns, "problem", where)
    answer_column = _find(ANSWER_COLUMNS, columns, "answer", where)
    context_columns = [columns[name] for name in CONTEXT_COLUMNS if name in columns]
    problem = _message(row[problem_column])
    if not problem:
        raise UserError(f"{where}: the problem ({problem_column}) is empty; fill it in or delete the row")
    answer = _answer(row[answer_column], answer_column, where)
    used = {problem_column, answer_column, *context_columns}
    context = [_message(row[column]) for column in context_columns]
    return _join([*context, problem]), answer, {k: v for k, v in row.items() if k not in used}


def _find(choices: tuple[str, ...], columns: dict[str, str], what: str, where: str) -> str:
    """The row's own spelling of the first of ``choices`` that it has."""
    for name in choices:
        if name in columns:
            return columns[name]
    raise UserError(
        f"{where}: no column with the {what}. It has: {', '.join(columns.values()) or 'no columns'}; "
        f"recognised are: {', '.join(choices)}. Rename the column that holds the {what} to {what!r}"
    )


def _message(value: Any) -> str:
    """A text, or the last user message of a list of {role, content}."""
    if isinstance(value, list):
        users = [m for m in value if isinstance(m, dict) and m.get("role") == "user"]
        value = users[-1].get("content") if users else None
    return "" if value is None else str(value).strip()


def _join(parts: list[str]) -> str:
    """Sentences one after the other; SVAMP's stories lack their full stop."""
    sentences = [part for part in parts if part]
    ended = [s if s.endswith((".", "?", "!", ":")) else f"{s}." for s in sentences[:-1]]
    return " ".join([*ended, sentences[-1]])


def _answer(value: Any, column: str, where: str) -> str:
    """The final answer in a cell, or UserError when there is none."""
    if column.lower() == "reward_model":
        value = value.get("ground_truth") if isinstance(value, dict) else None
        column += ".ground_truth"
    answer = final_answer(value)
    if not answer:
        raise UserError(f"{where}: the answer ({column}) is empty; fill it in or delete the row")
    if column.lower() == "solution" and answer == str(value).strip() and len(answer.split()) > 12:
        raise UserError(
            f"{where}: the solution names no final answer; put it in \\boxed{{}} or after ####, "
            "or add a column 'answer'"
        )
    return answer


def final_answer(value: Any) -> str:
    """A cell as an answer: 27.0 is "27", ["$7$"] is "7", "... #### 1,234" is "1234"."""
    if isinstance(value, list):
        return ", ".join(final_answer(item) for item in value)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    text = str(value).strip()
    if "####" in text:
        text = text.rpartition("####")[2].strip().replace(",", "")
    text = _unwrap_math(last_boxed(text) or text)
    return str(int(text)) if re.fullmatch(r"0\d+", text) else text  # AIME writes 045


def last_boxed(text: str) -> str | None:
    """The content of the last ``\\boxed{...}``, its inner braces balanced; None without one."""
    _, found, rest = text.rpartition("\\boxed{")
    depth = 1
    for i, char in enumerate(rest if found else ""):
        depth += {"{": 1, "}": -1}.get(char, 0)
        if depth == 0:
            return rest[:i].strip()
    return None


def _unwrap_math(text: str) -> str:
    """ "$x+1$" as "x+1"; "$a$, $b$" stays as it is."""
    if len(text) > 2 and text.count("$") == 2 and text.startswith("$") and text.endswith("$"):
        return text[1:-1].strip()
    return text
