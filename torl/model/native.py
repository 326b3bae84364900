"""The compiled kernels: kernels.c, built once by the machine's own C compiler.

They do what plain.py does, several times faster on a CPU. Where there is no compiler, or the
tensors are of another kind, plain.py does it. They are kept in torl's cache, by a name that
holds all they depend on: the source, the shape of heads, the compiler and the processor.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torl.model.plain import Plain
from torl.model.rows import BLOCK, Rows
from torl.model.tree import Tree
from torl.weights import cache_dir

PARTS = 16  # of a pack's rows, for sums over all rows that do not depend on the number of threads
FLAGS = ("-O3", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
ATTEMPTS = (
    ("-march=native", "-mprefer-vector-width=512", "-fopenmp"),
    ("-march=native", "-fopenmp"),
    ("-mcpu=native", "-fopenmp-simd"),  # Apple's compiler has no OpenMP: one thread
    ("-fopenmp-simd",),
)


class Native(Plain):
    """The kernels of one dtype and one shape of heads, on a CPU."""

    def __init__(self, library: ctypes.CDLL, name: str, heads: int, key_heads: int, head_dim: int) -> None:
        super().__init__(heads, key_heads, head_dim)
        self._library = library
        self.name = name

    def add_norm(
        self, hidden: Tensor, delta: Tensor | None, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """As Plain's; without gradients ``hidden`` is changed in place."""
        if torch.is_grad_enabled():
            pair: tuple[Tensor, Tensor] = _AddNorm.apply(self, hidden, delta, weight, eps)  # type: ignore[no-untyped-call]
            return pair
        out = torch.empty_like(hidden)
        self.call("add_norm", hidden, delta, weight, out, *hidden.shape, eps)
        return hidden, out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            product: Tensor = _SiluMul.apply(self, gate_up)  # type: ignore[no-untyped-call]
            return product
        out = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
        self.call("silu_mul", gate_up, out, *out.shape)
        return out

    def rotate(self, qkv: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> Tensor:
        """As Plain's; ``qkv`` is changed in place."""
        if torch.is_grad_enabled():
            rotated: Tensor = _Rotate.apply(self, qkv, cos, sin, positions)  # type: ignore[no-untyped-call]
            return rotated
        self.turn(qkv, cos, sin, positions, 1.0)
        return qkv

    def turn(self, qkv: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, direction: float) -> None:
        self.call("rotate", qkv, cos, sin, positions, direction, len(qkv), self.heads, self.key_heads)

    def attend_tree(self, qkv: Tensor, tree: Tree) -> Tensor:
        out: Tensor = _AttendTree.apply(self, qkv, tree)  # type: ignore[no-untyped-call]
        return out

    def store(self, qkv: Tensor, keys: Tensor, values: Tensor, rows: Rows) -> None:
        self.call("store", qkv, keys, values, *self._of(rows))

    def attend(self, qkv: Tensor, keys: Tensor, values: Tensor, rows: Rows) -> Tensor:
        out = qkv.new_empty(len(qkv), self.heads * self.head_dim)
        self.call("attend", qkv, keys, values, out, *self._of(rows))
        return out

    def logprobs(
        self, logits: Tensor, targets: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        chosen, entropy, norms = torch.empty(3, len(logits))
        found = (chosen, entropy, norms)
        self.call("logprobs", logits, targets, 1 / temperature, *found, *logits.shape)
        return found

    def logprob_slopes(
        self,
        logits: Tensor,
        targets: Tensor,
        temperature: float,
        norms: Tensor,
        slopes: Tensor,
        entropy: Tensor,
        entropy_slopes: Tensor | None,
    ) -> Tensor:
        """As Plain's; in place."""
        spread = entropy_slopes.contiguous() if entropy_slopes is not None else None
        found = (norms, slopes.contiguous(), entropy, spread)
        self.call("logprobs_backward", logits, targets, 1 / temperature, *found, *logits.shape)
        return logits

    def accumulate(self, total: Tensor, x: Tensor) -> None:
        self.call("accumulate", total, x.contiguous(), x.numel())

    def draw(self, logits: Tensor, uniforms: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
        ids = torch.empty(len(logits), dtype=torch.long)
        logprobs = torch.empty(len(logits))
        self.call("draw", logits, uniforms, temperatures, ids, logprobs, *logits.shape)
        return ids, logprobs

    def _of(self, rows: Rows) -> tuple[Tensor | int, ...]:
        tables = rows.tables
        shape = (len(rows.slots), self.heads, self.key_heads)
        return tables, tables.shape[1], rows.slots, rows.positions, *shape

    def call(self, function: str, *arguments: Tensor | float | None) -> None:
        """Tensors go as addresses, whole numbers as C longs; the number of threads comes last."""
        getattr(self._library, function)(*map(_as_c, arguments), ctypes.c_int(torch.get_num_threads()))


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kernels: Native, hidden: Tensor, delta: Tensor | None, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        hidden, out = hidden.clone() if delta is not None else hidden, torch.empty_like(hidden)
        kernels.call("add_norm", hidden, delta, weight, out, *hidden.shape, eps)
        ctx.save_for_backward(hidden, weight)
        ctx.kernels, ctx.eps, ctx.added = kernels, eps, delta is not None
        ctx.set_materialize_grads(False)
        return hidden, out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight = ctx.saved_tensors
        beside, slope = grads
        assert slope is not None
        change = beside.clone() if beside is not None else torch.empty_like(hidden)
        sums = torch.empty(PARTS, len(weight))
        slope = slope.contiguous()
        shape = (beside is not None, PARTS, *hidden.shape)
        ctx.kernels.call("add_norm_backward", hidden, weight, slope, change, sums, *shape, ctx.eps)
        return None, change, change if ctx.added else None, sums.sum(0).to(weight.dtype), None


class _SiluMul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernels: Native, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        ctx.kernels = kernels
        out = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
        kernels.call("silu_mul", gate_up, out, *out.shape)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        (gate_up,) = ctx.saved_tensors
        change, slope = torch.empty_like(gate_up), grads[0].contiguous()
        ctx.kernels.call("silu_mul_backward", gate_up, slope, change, *slope.shape)
        return None, change


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kernels: Native, qkv: Tensor, cos: Tensor, sin: Tensor, positions: Tensor
    ) -> Tensor:
        ctx.save_for_backward(cos, sin, positions)
        ctx.kernels = kernels
        ctx.mark_dirty(qkv)
        kernels.turn(qkv, cos, sin, positions, 1.0)
        return qkv

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        change = grads[0].clone()
        ctx.kernels.turn(change, *ctx.saved_tensors, -1.0)
        return None, change, None, None, None


class _AttendTree(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernels: Native, qkv: Tensor, tree: Tree) -> Tensor:
        tokens, heads, keys, dim = len(qkv), kernels.heads, kernels.key_heads, kernels.head_dim
        padded = tokens + BLOCK
        out, norms = qkv.new_empty(tokens, heads * dim), torch.empty(heads, padded)
        scratch = qkv.new_empty(keys * dim, padded)
        shape = (padded, tokens, heads, keys)
        line = (tree.segments, tree.starts, tree.parent_of)
        kernels.call("attend_tree", qkv, out, norms, scratch, *line, *shape)
        ctx.save_for_backward(qkv, out, norms)
        ctx.kernels, ctx.tree = kernels, tree
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, None]:
        qkv, out, norms = ctx.saved_tensors
        kernels, tree = ctx.kernels, ctx.tree
        change, deltas = torch.empty_like(qkv), torch.empty_like(norms)
        shape = (norms.shape[1], len(qkv), kernels.heads, kernels.key_heads)
        scratch = qkv.new_empty(2 * (kernels.heads + kernels.key_heads) * kernels.head_dim, shape[0])
        line = (tree.segments, tree.starts, tree.parent_of, *tree.followers)
        slope = grads[0].contiguous()
        kernels.call("attend_tree_backward", qkv, out, slope, change, norms, deltas, scratch, *line, *shape)
        return None, change, None


def _as_c(value: Tensor | float | None) -> ctypes.c_void_p | ctypes.c_long | ctypes.c_float:
    if isinstance(value, Tensor):
        return ctypes.c_void_p(value.data_ptr())
    if isinstance(value, float):
        return ctypes.c_float(value)
    return ctypes.c_void_p(None) if value is None else ctypes.c_long(value)


def kernels_for(
    heads: int, key_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> Plain:
    """The fastest kernels that there are for a model of this shape."""
    shape = (heads, key_heads, head_dim)
    fits = device.type == "cpu" and dtype in (torch.float32, torch.bfloat16)
    library = _library(dtype, head_dim, heads // key_heads) if fits else None
    return Native(library, "compiled", *shape) if library else Plain(*shape)


@functools.cache
def _library(dtype: torch.dtype, head_dim: int, group: int) -> ctypes.CDLL | None:
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or os.environ.get("TORL_KERNELS") == "plain":
        return None
    shape = [f"-DDIM={head_dim}", f"-DGROUP={group}", f"-DBLOCK={BLOCK}"]
    shape += ["-DNARROW"] if dtype == torch.bfloat16 else []
    with resources.as_file(resources.files("torl.model") / "kernels.c") as source:
        key = repr((source.read_text(), shape, FLAGS, ATTEMPTS, compiler, _processor()))
        target = cache_dir() / "kernels" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.so"
        try:
            if not target.exists():
                _build([compiler, *FLAGS, *shape, str(source), "-lm"], target)
            return ctypes.CDLL(str(target))
        except OSError:
            return None


def _build(command: list[str], target: Path) -> None:
    """Compiles to ``target``, at once or not at all. Raises OSError when nothing works."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        for attempt in ATTEMPTS:
            made = Path(work) / "kernels.so"
            done = subprocess.run(
                [*command, *attempt, "-o", str(made)], capture_output=True, text=True, check=False
            )
            if done.returncode == 0:
                made.rename(target)
                return
        raise OSError(done.stderr)


def _processor() -> str:
    """What code made for this machine depends on: a shared home may be read by another one."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return f"{platform.machine()} {platform.processor()}"
