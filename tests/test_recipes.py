"""Recipes: the built-in ones, every key, and every error that a recipe can have."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny import byte_level_tokenizer, tiny_model
from typer.testing import CliRunner

from torl.cli import app
from torl.config import Recipe, Section, builtin_recipes, load_recipe
from torl.errors import UserError

RECIPES = sorted(builtin_recipes())

# Every key of a recipe. A new one is a decision: documented, tested, and added here.
KEYS = re.findall(
    r"\S+",
    """
    name description model dtype device seed steps prompts_per_step group_size tools rewards
    tasks.train tasks.test tasks.limit tasks.test_limit tasks.holdout tasks.split_seed tasks.kinds
    tasks.difficulty tasks.size
    prompt.template prompt.system prompt.max_tokens
    rollout.max_tool_calls rollout.max_completion_tokens rollout.max_observation_tokens
    rollout.temperature rollout.top_k rollout.top_p rollout.min_p
    rollout.stop rollout.past_budget rollout.max_requests_past_budget
    rollout.train_truncated rollout.retries rollout.tool_timeout_s
    sampler.max_sequences sampler.prefill_tokens sampler.cache_gb
    sandbox.timeout_s sandbox.cpu_s sandbox.memory_mb sandbox.output_kb sandbox.workers
    sandbox.tier sandbox.state sandbox.last_value sandbox.python sandbox.preload sandbox.urls
    correctness.how correctness.right correctness.wrong correctness.ignore_case correctness.rel_tol
    correctness.abs_tol correctness.pattern correctness.timeout_s correctness.workers
    overlong.buffer_ratio
    efficiency.per_call efficiency.free_calls efficiency.per_second efficiency.redundant efficiency.unused
    efficiency.after_answer efficiency.most
    soundness.checks
    llm_judge.base_url llm_judge.model llm_judge.api_key_env llm_judge.rubric llm_judge.low llm_judge.high
    llm_judge.temperature llm_judge.max_tokens llm_judge.timeout_s llm_judge.retries llm_judge.backoff_s
    llm_judge.max_concurrent llm_judge.max_requests llm_judge.max_total_tokens
    filters.mask filters.draws filters.oversample
    algorithm.advantage algorithm.per_part algorithm.loss algorithm.aggregation
    algorithm.clip_low algorithm.clip_high algorithm.dual_clip
    algorithm.entropy_coef algorithm.kl_coef algorithm.kl algorithm.kl_in
    algorithm.off_policy algorithm.off_policy_level algorithm.off_policy_bound
    algorithm.mini_batches algorithm.epochs algorithm.old_logprobs
    critic.backbone critic.lr critic.clip critic.warmup_updates critic.gamma critic.gae_lambda
    critic.by_turn critic.whiten
    learner.lr learner.warmup_steps learner.decay_steps learner.weight_decay learner.beta1 learner.beta2
    learner.max_grad_norm learner.pack_tokens learner.activation_checkpointing learner.max_bad_updates
    eval.every eval.before eval.temperature
    checkpoint.every checkpoint.keep
""",
)


def section_of(annotation: Any) -> type[Section] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def fields(section: type[Section] = Recipe, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of a recipe by its dotted name, with pydantic's knowledge of it."""
    for name, info in section.model_fields.items():
        inner = section_of(info.annotation)
        if inner is None:
            yield before + name, info
        else:
            yield from fields(inner, f"{before}{name}.")


def keys_of(data: dict[str, Any], before: str = "") -> Iterator[str]:
    for name, value in data.items():
        if isinstance(value, dict) and name != "rewards":
            yield from keys_of(value, f"{before}{name}.")
        else:
            yield before + name


def error(*overrides: str, recipe: str = "quickstart") -> str:
    with pytest.raises(UserError) as caught:
        load_recipe(recipe, list(overrides))
    return str(caught.value)


def test_the_keys_are_these() -> None:
    assert sorted(name for name, _ in fields()) == sorted(KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_every_key_is_documented(key: str) -> None:
    assert (dict(fields())[key].description or "").strip()


class TestBuiltIn:
    def test_these_come_with_torl(self) -> None:
        assert {"quickstart", "cpu-mawps", "torl-1.5b", "torl-7b"} <= set(RECIPES)

    @pytest.mark.parametrize("name", RECIPES)
    def test_it_has_one_line_of_description(self, name: str) -> None:
        description = builtin_recipes()[name]
        assert 20 < len(description) < 110
        assert "\n" not in description

    @pytest.mark.parametrize("name", RECIPES)
    def test_it_comes_back_from_yaml(self, name: str, tmp_path: Path) -> None:
        recipe = load_recipe(name)
        assert recipe.name == name
        (tmp_path / "copy.yaml").write_text(recipe.to_yaml(), encoding="utf-8")
        assert load_recipe(str(tmp_path / "copy.yaml")) == recipe

    @pytest.mark.parametrize("name", RECIPES)
    def test_show_prints_every_key(self, name: str) -> None:
        result = CliRunner().invoke(app, ["train", name, "--show"])
        assert result.exit_code == 0
        assert sorted(keys_of(yaml.safe_load(result.stdout))) == sorted(KEYS)


class TestOverrides:
    @pytest.mark.parametrize(
        ("override", "key", "value"),
        [
            ("learner.lr=1e-5", "learner.lr", 1e-5),
            ("learner.lr=0.5", "learner.lr", 0.5),
            ("steps=3", "steps", 3),
            ("tools=none", "tools", []),
            ("tools=python", "tools", ["python"]),
            ("tools=[python, pkg.module:function]", "tools", ["python", "pkg.module:function"]),
            ("tasks.test=[a.jsonl, b.jsonl]", "tasks.test", ["a.jsonl", "b.jsonl"]),
            ("tasks.test_limit=null", "tasks.test_limit", None),
            ("model=owner/name-1e5", "model", "owner/name-1e5"),
            ("prompt.system=a=b", "prompt.system", "a=b"),
            ("algorithm.advantage=dr_grpo", "algorithm.advantage", "dr_grpo"),
            (
                "rewards.pkg.module:function=0.5",
                "rewards",
                {"correctness": 1.0, "pkg.module:function": 0.5},
            ),
        ],
    )
    def test_a_value_is_read_as_yaml(self, override: str, key: str, value: Any) -> None:
        found: Any = load_recipe("quickstart", [override])
        for part in key.split("."):
            found = getattr(found, part)
        assert found == value

    def test_the_last_one_counts(self) -> None:
        assert load_recipe("quickstart", ["steps=3", "steps=4"]).steps == 4

    def test_from_python(self) -> None:
        recipe = Recipe().override(**{"learner.lr": 1e-4, "steps": 2})
        assert (recipe.learner.lr, recipe.steps) == (1e-4, 2)
        with pytest.raises(UserError, match="unknown key"):
            recipe.override(stepz=2)


class TestErrors:
    @pytest.mark.parametrize(
        ("override", "said"),
        [
            ("stepz=2", ["unknown key stepz", "Did you mean steps?", "prompts_per_step"]),
            ("learner.lrr=1", ["unknown key learner.lrr", "Did you mean lr?", "warmup_steps"]),
            ("max_tool_calls=1", ["unknown key max_tool_calls", "Did you mean rollout.max_tool_calls?"]),
            ("zzz=1", ["unknown key zzz", "Known here:", "steps"]),
        ],
    )
    def test_unknown_keys(self, override: str, said: list[str]) -> None:
        message = error(override)
        assert all(part in message for part in said), message

    @pytest.mark.parametrize(
        ("override", "said"),
        [
            ("steps=many", "steps='many'"),
            ("steps=2.5", "steps=2.5"),
            ("steps=0", "greater than 0"),
            ("learner.beta1=1.0", "less than 1"),
            ("tasks.difficulty=2", "less than or equal to 1"),
            ("dtype=float16", "'float32' or 'bfloat16'"),
            ("algorithm.advantage=gpro", "none named 'gpro'. Did you mean grpo? Known: grpo, dr_grpo"),
            ("rollout.past_budget=shout", "'tell' or 'ignore'"),
            ("rollout.train_truncated=perhaps", "valid boolean"),
            ("tasks.kinds=sums", "valid list"),
            ("tasks.test=3", "tasks.test"),
            ("rewards.correctness=much", "rewards.correctness"),
            ("tasks=5", "tasks=5"),
            ("correctness.how=maths", "'math', 'exact', 'numeric', 'choice', 'regex' or 'tests'"),
            ("correctness.rel_tol=-1", "greater than or equal to 0"),
            ("efficiency.per_call=-1", "greater than or equal to 0"),
            ("soundness.checks=[]", "at least one check"),
            ("soundness.checks=[answer_once, answer_once]", "none of them twice"),
            ("soundness.checks=[answer_onc]", "no check named 'answer_onc'. Did you mean answer_once?"),
            ("llm_judge.base_url=file:///etc/passwd", "must begin with http:// or https://"),
            ("llm_judge.base_url=https://me:secret@host/v1", "user name or password"),
            ("llm_judge.rubric=Judge it", "must have {response} in it"),
            ("llm_judge.low=10", "llm_judge.low=10 must be less than llm_judge.high=10"),
        ],
    )
    def test_wrong_values_name_their_key(self, override: str, said: str) -> None:
        message = error(override)
        assert said in message
        assert override.partition("=")[0].partition(".")[0] in message

    @pytest.mark.parametrize(
        ("overrides", "said"),
        [
            (["group_size=1"], ["group_size", "at least 2"]),
            (["rollout.max_observation_tokens=96"], ["max_observation_tokens", "max_completion_tokens"]),
            (["algorithm.mini_batches=97"], ["mini_batches=97", "96 trajectories"]),
            (["rewards={}"], ["rewards", "at least one"]),
            (["correctness.how=regex"], ["correctness.how=regex needs correctness.pattern"]),
            (["correctness.pattern=x"], ["used by how=regex alone", "how is math"]),
            (
                ["correctness.how=regex", "correctness.pattern=(a"],
                ["'(a' does not compile", "unterminated"],
            ),
            (["rewards={tool_efficiency: 1.0}"], ["tool_efficiency needs correctness beside it"]),
            (["rewards.tool_efficiency=1.0", "efficiency.most=1.0"], ["efficiency.most=1", "gains over"]),
            (["rewards.tool_efficiency=2.0"], ["with the weight 2", "Lower efficiency.most"]),
            (["rewards.judge=1.0"], ["rewards.judge needs llm_judge.base_url and llm_judge.model"]),
        ],
    )
    def test_impossible_combinations(self, overrides: list[str], said: list[str]) -> None:
        message = error(*overrides)
        assert all(part in message for part in said), message

    @pytest.mark.parametrize("key", ["sk-AbCdEfGh0123456789", "hf_AbCdEfGh0123456789", "Bearer x", "a=b"])
    def test_a_key_in_the_place_of_its_variables_name_is_refused_and_not_repeated(self, key: str) -> None:
        message = error(f"llm_judge.api_key_env={key}")
        assert "not the name of a variable" in message
        assert key not in message

    def test_costs_that_leave_right_answers_ahead_are_allowed(self) -> None:
        """quickstart's right answers gain 1 over wrong ones."""
        recipe = load_recipe("quickstart", ["rewards.tool_efficiency=1.0", "efficiency.most=0.99"])
        assert recipe.efficiency.most == 0.99
        load_recipe("quickstart", ["rewards.tool_efficiency=2.0", "rewards.correctness=3.0"])

    def test_an_endpoint_is_written_as_people_have_it(self) -> None:
        recipe = load_recipe("quickstart", ["llm_judge.base_url=http://host:1/v1/chat/completions"])
        assert recipe.llm_judge.base_url == "http://host:1/v1"

    def test_without_tools_observations_need_no_room(self) -> None:
        assert load_recipe("quickstart", ["tools=none", "rollout.max_observation_tokens=96"]).tools == []

    def test_several_errors_are_told_together(self) -> None:
        message = error("steps=0", "seeed=1")
        assert "steps" in message
        assert "Did you mean seed?" in message

    @pytest.mark.parametrize(
        ("override", "said"),
        [
            ("steps", "not of the form key=value"),
            ("=3", "not of the form key=value"),
            ("steps=[1", "not valid YAML"),
            ("steps.of=3", "'steps' is a value"),
        ],
    )
    def test_malformed_overrides(self, override: str, said: str) -> None:
        assert said in error(override)

    def test_an_unknown_recipe_offers_the_nearest(self) -> None:
        assert "Did you mean quickstart?" in error(recipe="quikstart")
        assert "cpu-mawps" in error(recipe="nothing-like-it")

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("steps: [1", "not valid YAML"),
            ("- steps", "a recipe is a mapping of keys, not a list"),
            ("steps: 3\nlr: 1.0\n", "Did you mean learner.lr?"),
        ],
    )
    def test_files(self, text: str, said: str, tmp_path: Path) -> None:
        (tmp_path / "mine.yaml").write_text(text)
        assert said in error(recipe=str(tmp_path / "mine.yaml"))

    def test_a_missing_file(self, tmp_path: Path) -> None:
        assert "no recipe file" in error(recipe=str(tmp_path / "mine.yaml"))

    def test_an_empty_file_is_all_defaults(self, tmp_path: Path) -> None:
        (tmp_path / "mine.yaml").write_text("")
        assert load_recipe(str(tmp_path / "mine.yaml")) == Recipe(name="mine")


class TestThePapers:
    """torl-1.5b and torl-7b: PAPER's section 6, and that they run."""

    @pytest.mark.parametrize("name", ["torl-1.5b", "torl-7b"])
    def test_the_numbers_of_the_paper(self, name: str) -> None:
        recipe = load_recipe(name)
        assert (recipe.prompts_per_step, recipe.group_size, recipe.rollout.temperature) == (128, 16, 1.0)
        assert (recipe.learner.lr, recipe.learner.warmup_steps) == (1e-6, 0)
        assert (recipe.rollout.max_tool_calls, recipe.rollout.max_completion_tokens) == (1, 3072)
        assert (recipe.correctness.right, recipe.correctness.wrong) == (1.0, -1.0)
        assert (recipe.algorithm.clip_low, recipe.algorithm.clip_high) == (0.2, 0.2)
        assert (recipe.prompt.template, recipe.rewards) == ("torl", {"correctness": 1.0})
        assert recipe.prompt.max_tokens == 400 - 10
        assert recipe.prompt.max_tokens + recipe.rollout.max_completion_tokens <= 4096

    def test_they_differ_only_in_what_the_size_decides(self) -> None:
        small, large = load_recipe("torl-1.5b").model_dump(), load_recipe("torl-7b").model_dump()
        differing = [key for key in small if small[key] != large[key]]
        assert set(differing) == {"name", "description", "model", "steps", "sampler", "learner"}

    @pytest.mark.parametrize("name", ["torl-1.5b", "torl-7b"])
    def test_departures_are_named(self, name: str) -> None:
        text = (Path(__file__).parent.parent / "torl" / "recipes" / f"{name}.yaml").read_text()
        assert text.count("# Departure:") + text.count(". Departure") >= 8

    @pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable. is deprecated:FutureWarning")
    @pytest.mark.parametrize("name", ["torl-1.5b", "torl-7b"])
    def test_it_runs_a_step(self, name: str, tmp_path: Path) -> None:
        from torl.train import train

        folder = tmp_path / "model"
        tiny_model("qwen2", scale=0.3).save_pretrained(folder)
        byte_level_tokenizer().save_pretrained(folder)
        tasks = tmp_path / "tasks.jsonl"
        tasks.write_text("".join(f'{{"problem": "{n} + {n}?", "answer": "{2 * n}"}}\n' for n in range(8)))
        small = [
            *(f"model={folder}", "device=cpu", "dtype=float32", "steps=1", "correctness.workers=1"),
            *(f"tasks.train={tasks}", f"tasks.test={tasks}", "tasks.holdout=2"),
            *("prompts_per_step=2", "group_size=2", "sampler.max_sequences=8"),
            *("rollout.max_completion_tokens=24", "rollout.max_observation_tokens=8"),
        ]
        run = train(load_recipe(name, small), tmp_path / "run")
        summary = run.summary()
        assert summary is not None
        assert summary["steps"] == 1
        assert summary["heldout_after"]["n"] == 2
