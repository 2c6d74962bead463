"""Attention with dropout in one kernel, for training on GPUs: scores, weights and masks stay out of memory.

Sources: Dao et al. 2022, "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness"
(arXiv 2205.14135); Dao 2023, "FlashAttention-2: Faster Attention with Better Parallelism and Work
Partitioning" (arXiv 2307.08691), whose loops these are. Forward and for the queries' gradient, a program has
a block of queries and goes over the keys; for the gradients of keys and values it has a block of keys and
goes over the queries.

The kernels compute what `attend` in models/transformer.py writes out, with the same mask. With P the softmax
of the scores and Z the mask, 0 or 2^16 / (2^16 - num_dropped) = c:

    O = (P * Z) V            the normaliser in P counts all keys, the dropped ones too
    dV = (P * Z)' dO
    dS = P * (Z * dO V' - delta),  delta = rowsum(P * Z * dO V') = rowsum(O * dO)

The backward pass needs the output and the logarithm of each query's normaliser, and makes scores and mask
again. Products are in the dtype of the inputs with sums in float32; all else is in float32. Nothing is summed
in an order that could change, so results are the same bits each time.

A bias with a gradient (Transformer-XL) or with a value for each query is left to the written-out form.

FlexAttention of torch 2.13 cannot drop weights in one pass: its `score_mod` acts before the softmax, so a
dropped key would leave the normaliser, too. Two passes equal the written-out form (to 6e-7 in float32): the
numerator with the kept keys, times exp(difference of the log-sum-exps), which needs a second pass with all
keys. That is twice the products, forward and backward, and the compiler; so these are kernels of our own.

Shapes: B rows, H heads, Q queries, S keys, D features of a head.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from models.random_bits import RowMask
from models.triton_masks import kept, mixed, row_key, states, threshold

MAX_WIDTH = 128  # of a head; accumulators of wider ones would not fit into the registers
_LOG2_E = tl.constexpr(math.log2(math.e))


class Block(NamedTuple):
    """The rows that a program has at once, and the hardware it gets."""

    queries: int
    keys: int
    num_warps: int
    num_stages: int  # blocks that are loaded ahead, and one
    max_registers: int | None = None  # of a thread


class Blocks(NamedTuple):
    forward: Block
    backward_queries: Block
    backward_keys: Block


# Chosen for an H100 with D = 64 and S = 512 by reasoning and by `benchmarks/triton_kernels.py`; not measured.
# Most instructions go into masks and exponentials, a score takes 25 to 32, so programs should alternate: one
# multiplies while another does the rest. A warp group (4 warps) multiplies 64 rows. With 64 x 64 scores a
# thread has 32 of them. Within 168 registers, without spills, a multiprocessor runs three programs forward;
# backward, which takes up to 211, two. 128 rows by eight warps take the same registers for each thread and
# leave room for one program; 32 keys at a time take a tenth more instructions for each score.
_BACKWARD = Block(64, 64, num_warps=4, num_stages=2)
_BFLOAT16 = Blocks(Block(64, 64, num_warps=4, num_stages=3, max_registers=168), _BACKWARD, _BACKWARD)
_WIDE_BFLOAT16 = Blocks(Block(64, 64, num_warps=4, num_stages=3), _BACKWARD, _BACKWARD)  # D > 64
_FLOAT32 = Blocks(
    Block(64, 32, num_warps=4, num_stages=2),
    Block(64, 32, num_warps=4, num_stages=2),
    Block(32, 64, num_warps=4, num_stages=2),
)


@triton.jit
def _rows(first, rows, stride, num_rows, D: tl.constexpr, WIDTH: tl.constexpr):
    """Return the pointers to rows of D numbers, (rows, WIDTH), and which of these numbers exist."""
    columns = tl.arange(0, WIDTH)
    pointers = first + rows[:, None] * stride + columns[None, :]
    return pointers, (rows < num_rows)[:, None] & (columns < D)[None, :]


@triton.jit
def _load_rows(first, rows, stride, num_rows, D: tl.constexpr, WIDTH: tl.constexpr):
    """Load rows of D numbers, (rows, WIDTH); zero is what does not exist."""
    pointers, exists = _rows(first, rows, stride, num_rows, D, WIDTH)
    return tl.load(pointers, mask=exists, other=0.0)


@triton.jit
def _store_rows(values, first, rows, stride, num_rows, D: tl.constexpr, WIDTH: tl.constexpr):
    pointers, exists = _rows(first, rows, stride, num_rows, D, WIDTH)
    tl.store(pointers, values.to(first.dtype.element_ty), mask=exists)


@triton.jit
def _head(tensor, strides, row, head):
    """Return the pointer to what a row's head has of a tensor (B, H, Q or S, D)."""
    return tensor + row.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[1]


@triton.jit
def _key_bias(key_bias, stride, row, keys, num_keys):
    """Return the bias of some keys, times log2(e); minus infinity for keys that do not exist."""
    exists = keys < num_keys
    if key_bias is None:
        bias = tl.where(exists, 0.0, float("-inf"))
    else:
        pointers = key_bias + row.to(tl.int64) * stride + keys
        bias = tl.load(pointers, mask=exists, other=float("-inf")).to(tl.float32) * _LOG2_E
    return bias


@triton.jit(do_not_specialize=["draw", "first_row", "threshold"])
def _forward(
    q, k, v, key_bias, out, log_normaliser,
    q_strides, k_strides, v_strides, out_strides, key_bias_stride,
    step_key, draw, first_row, threshold, mask_scale,
    score_scale, num_queries, num_keys,
    IS_CAUSAL: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Attend with a block of queries; `log_normaliser` (B, H, Q), here and below, is to base 2."""
    head, row = tl.program_id(1), tl.program_id(2)
    base_2_scale = score_scale * _LOG2_E  # exp(x) is 2^(x log2(e)), which the hardware has
    queries = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    lines = head * num_queries + queries  # of the mask (H, Q, S)
    mask_key, numbers_of_a_line = row_key(step_key, draw, first_row + row), tl.cdiv(num_keys, 4)
    k, v = _head(k, k_strides, row, head), _head(v, v_strides, row, head)
    q_block = _load_rows(_head(q, q_strides, row, head), queries, q_strides[2], num_queries, D, WIDTH)

    top = tl.full([QUERIES], float("-inf"), tl.float32)  # the largest score so far
    normaliser = tl.zeros([QUERIES], tl.float32)  # of 2^(score - top)
    read = tl.zeros([QUERIES, WIDTH], tl.float32)
    end = tl.minimum((tl.program_id(0) + 1) * QUERIES, num_keys) if IS_CAUSAL else num_keys
    for start in range(0, end, KEYS):
        keys = start + tl.arange(0, KEYS)
        k_block = _load_rows(k, keys, k_strides[2], num_keys, D, WIDTH)
        bias = _key_bias(key_bias, key_bias_stride, row, keys, num_keys)
        scores = tl.dot(q_block, k_block.T, input_precision=PRECISION) * base_2_scale + bias[None, :]
        if IS_CAUSAL:
            scores = tl.where(keys[None, :] <= queries[:, None], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        shift = tl.where(new_top == float("-inf"), 0.0, new_top)  # no key yet that may be read
        weights = tl.exp2(scores - shift[:, None])
        shrink = tl.exp2(top - shift)
        normaliser = normaliser * shrink + tl.sum(weights, 1)
        keep = kept(mixed(states(mask_key, lines, numbers_of_a_line, start // 4, KEYS // 4)), threshold)
        weights = tl.where(keep, weights, 0.0).to(v.dtype.element_ty)
        v_block = _load_rows(v, keys, v_strides[2], num_keys, D, WIDTH)
        read = tl.dot(weights, v_block, read * shrink[:, None], input_precision=PRECISION)
        top = new_top

    read *= (mask_scale / normaliser)[:, None]
    _store_rows(read, _head(out, out_strides, row, head), queries, out_strides[2], num_queries, D, WIDTH)
    places = row.to(tl.int64) * tl.num_programs(1) * num_queries + lines
    tl.store(log_normaliser + places, top + tl.log2(normaliser), mask=queries < num_queries)


@triton.jit(do_not_specialize=["draw", "first_row", "threshold"])
def _backward_queries(
    q, k, v, key_bias, out, log_normaliser, d_out, d_q, delta,
    q_strides, k_strides, v_strides, out_strides, d_out_strides, d_q_strides, key_bias_stride,
    step_key, draw, first_row, threshold, mask_scale,
    score_scale, num_queries, num_keys,
    IS_CAUSAL: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of a block of queries, and their `delta` (B, H, Q) for `_backward_keys`."""
    head, row = tl.program_id(1), tl.program_id(2)
    base_2_scale = score_scale * _LOG2_E  # exp(x) is 2^(x log2(e)), which the hardware has
    queries = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    lines = head * num_queries + queries
    mask_key, numbers_of_a_line = row_key(step_key, draw, first_row + row), tl.cdiv(num_keys, 4)
    k, v = _head(k, k_strides, row, head), _head(v, v_strides, row, head)
    q_block = _load_rows(_head(q, q_strides, row, head), queries, q_strides[2], num_queries, D, WIDTH)
    out_block = _load_rows(_head(out, out_strides, row, head), queries, out_strides[2], num_queries, D, WIDTH)
    d_out_block = _load_rows(
        _head(d_out, d_out_strides, row, head), queries, d_out_strides[2], num_queries, D, WIDTH
    )
    places = row.to(tl.int64) * tl.num_programs(1) * num_queries + lines
    log_normaliser_block = tl.load(log_normaliser + places, mask=queries < num_queries, other=0.0)
    delta_block = tl.sum(out_block.to(tl.float32) * d_out_block.to(tl.float32), 1)
    tl.store(delta + places, delta_block, mask=queries < num_queries)

    d_q_block = tl.zeros([QUERIES, WIDTH], tl.float32)
    end = tl.minimum((tl.program_id(0) + 1) * QUERIES, num_keys) if IS_CAUSAL else num_keys
    for start in range(0, end, KEYS):
        keys = start + tl.arange(0, KEYS)
        k_block = _load_rows(k, keys, k_strides[2], num_keys, D, WIDTH)
        v_block = _load_rows(v, keys, v_strides[2], num_keys, D, WIDTH)
        bias = _key_bias(key_bias, key_bias_stride, row, keys, num_keys)
        scores = tl.dot(q_block, k_block.T, input_precision=PRECISION) * base_2_scale + bias[None, :]
        if IS_CAUSAL:
            scores = tl.where(keys[None, :] <= queries[:, None], scores, float("-inf"))
        weights = tl.exp2(scores - log_normaliser_block[:, None])
        keep = kept(mixed(states(mask_key, lines, numbers_of_a_line, start // 4, KEYS // 4)), threshold)
        d_weights = tl.dot(d_out_block, v_block.T, input_precision=PRECISION)
        d_weights = tl.where(keep, d_weights * mask_scale, 0.0)
        d_scores = (weights * (d_weights - delta_block[:, None])).to(k.dtype.element_ty)
        d_q_block = tl.dot(d_scores, k_block, d_q_block, input_precision=PRECISION)

    d_q_block *= score_scale
    _store_rows(d_q_block, _head(d_q, d_q_strides, row, head), queries, d_q_strides[2], num_queries, D, WIDTH)


@triton.jit(do_not_specialize=["draw", "first_row", "threshold"])
def _backward_keys(
    q, k, v, key_bias, log_normaliser, d_out, delta, d_k, d_v,
    q_strides, k_strides, v_strides, d_out_strides, d_k_strides, d_v_strides, key_bias_stride,
    step_key, draw, first_row, threshold, mask_scale,
    score_scale, num_queries, num_keys,
    IS_CAUSAL: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a block of keys and of their values. Scores are (keys, queries) here."""
    head, row = tl.program_id(1), tl.program_id(2)
    base_2_scale = score_scale * _LOG2_E  # exp(x) is 2^(x log2(e)), which the hardware has
    first_key = tl.program_id(0) * KEYS
    keys = first_key + tl.arange(0, KEYS)
    mask_key, numbers_of_a_line = row_key(step_key, draw, first_row + row), tl.cdiv(num_keys, 4)
    q, d_out = _head(q, q_strides, row, head), _head(d_out, d_out_strides, row, head)
    k_block = _load_rows(_head(k, k_strides, row, head), keys, k_strides[2], num_keys, D, WIDTH)
    v_block = _load_rows(_head(v, v_strides, row, head), keys, v_strides[2], num_keys, D, WIDTH)
    bias = _key_bias(key_bias, key_bias_stride, row, keys, num_keys)

    d_k_block = tl.zeros([KEYS, WIDTH], tl.float32)
    d_v_block = tl.zeros([KEYS, WIDTH], tl.float32)
    first_query = first_key // QUERIES * QUERIES if IS_CAUSAL else 0
    for start in range(first_query, num_queries, QUERIES):
        queries = start + tl.arange(0, QUERIES)
        lines = head * num_queries + queries
        places = row.to(tl.int64) * tl.num_programs(1) * num_queries + lines
        q_block = _load_rows(q, queries, q_strides[2], num_queries, D, WIDTH)
        log_normaliser_block = tl.load(log_normaliser + places, mask=queries < num_queries, other=0.0)
        scores = tl.dot(k_block, q_block.T, input_precision=PRECISION) * base_2_scale + bias[:, None]
        if IS_CAUSAL:
            scores = tl.where(keys[:, None] <= queries[None, :], scores, float("-inf"))
        weights = tl.exp2(scores - log_normaliser_block[None, :])
        keep = kept(mixed(states(mask_key, lines, numbers_of_a_line, first_key // 4, KEYS // 4)), threshold).T
        d_out_block = _load_rows(d_out, queries, d_out_strides[2], num_queries, D, WIDTH)
        kept_weights = tl.where(keep, weights, 0.0).to(q.dtype.element_ty)
        d_v_block = tl.dot(kept_weights, d_out_block, d_v_block, input_precision=PRECISION)
        d_weights = tl.dot(v_block, d_out_block.T, input_precision=PRECISION)
        d_weights = tl.where(keep, d_weights * mask_scale, 0.0)
        delta_block = tl.load(delta + places, mask=queries < num_queries, other=0.0)
        d_scores = (weights * (d_weights - delta_block[None, :])).to(q.dtype.element_ty)
        d_k_block = tl.dot(d_scores, q_block, d_k_block, input_precision=PRECISION)

    d_k_block *= score_scale
    d_v_block *= mask_scale
    _store_rows(d_k_block, _head(d_k, d_k_strides, row, head), keys, d_k_strides[2], num_keys, D, WIDTH)
    _store_rows(d_v_block, _head(d_v, d_v_strides, row, head), keys, d_v_strides[2], num_keys, D, WIDTH)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q_BHQD: Tensor,
        k_BHSD: Tensor,
        v_BHSD: Tensor,
        key_bias_BS: Tensor | None,
        mask_key: Tensor,
        mask: RowMask,
        is_causal: bool,
        blocks: Blocks,
    ) -> Tensor:
        B, H, Q, _ = q_BHQD.shape
        out, log_normaliser = _heads_last(q_BHQD), q_BHQD.new_empty(B, H, Q, dtype=torch.float32)
        block = blocks.forward
        _forward[triton.cdiv(Q, block.queries), H, B](
            q_BHQD, k_BHSD, v_BHSD, key_bias_BS, out, log_normaliser,
            *_strides(q_BHQD, k_BHSD, v_BHSD, out),
            *_common(q_BHQD, k_BHSD, key_bias_BS, mask_key, mask),
            **_options(q_BHQD, is_causal, block),
        )  # fmt: skip
        ctx.save_for_backward(q_BHQD, k_BHSD, v_BHSD, key_bias_BS, mask_key, out, log_normaliser)
        ctx.mask, ctx.is_causal, ctx.blocks = mask, is_causal, blocks
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        q, k, v, key_bias, mask_key, out, log_normaliser = ctx.saved_tensors
        (B, H, Q, _), S = q.shape, k.shape[2]
        d_out, delta = _with_rows(grads[0]), torch.empty_like(log_normaliser)
        d_q, d_k, d_v = _heads_last(q), _heads_last(k), _heads_last(v)
        common = _common(q, k, key_bias, mask_key, ctx.mask)
        block = ctx.blocks.backward_queries
        _backward_queries[triton.cdiv(Q, block.queries), H, B](
            q, k, v, key_bias, out, log_normaliser, d_out, d_q, delta,
            *_strides(q, k, v, out, d_out, d_q), *common,
            **_options(q, ctx.is_causal, block),
        )  # fmt: skip
        block = ctx.blocks.backward_keys
        _backward_keys[triton.cdiv(S, block.keys), H, B](
            q, k, v, key_bias, log_normaliser, d_out, delta, d_k, d_v,
            *_strides(q, k, v, d_out, d_k, d_v), *common,
            **_options(q, ctx.is_causal, block),
        )  # fmt: skip
        return d_q, d_k, d_v, None, None, None, None, None


def _with_rows(x_BHSD: Tensor) -> Tensor:
    """Return the tensor with the numbers of a row beside each other in memory, as the kernels read them."""
    return x_BHSD if x_BHSD.stride(-1) == 1 else x_BHSD.contiguous()


def _heads_last(x_BHSD: Tensor) -> Tensor:
    """Return an empty tensor of this shape, in memory (B, S, H, D), as the layers around read it."""
    B, H, S, D = x_BHSD.shape
    return x_BHSD.new_empty(B, S, H, D).transpose(1, 2)


def _strides(*tensors: Tensor) -> list[tuple[int, ...]]:
    return [tensor.stride()[:3] for tensor in tensors]


def _common(
    q: Tensor, k: Tensor, key_bias: Tensor | None, mask_key: Tensor, mask: RowMask
) -> tuple[Any, ...]:
    """Return the arguments that all kernels have after the strides."""
    (Q, D), S = q.shape[2:], k.shape[2]
    bias_stride = 0 if key_bias is None else key_bias.stride(0)
    of_mask = (mask_key, mask.draw, mask.first_row, threshold(mask.num_dropped), mask.scale)
    return bias_stride, *of_mask, 1 / math.sqrt(D), Q, S


def _options(q: Tensor, is_causal: bool, block: Block) -> dict[str, Any]:
    D = q.shape[-1]
    return {
        "IS_CAUSAL": is_causal,
        "D": D,
        "WIDTH": _width(D),
        # Float32 as torch multiplies it: TF32 where that is allowed, else three such products, exact to 1e-6.
        "PRECISION": "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3",
        "QUERIES": block.queries,
        "KEYS": block.keys,
        "num_warps": block.num_warps,
        "num_stages": block.num_stages,
        "maxnreg": block.max_registers,
        "enable_fp_fusion": True,  # a product and a sum as one operation
    }


def _blocks(dtype: torch.dtype, D: int) -> Blocks:
    """Return the blocks for an H100."""
    if dtype == torch.float32:
        return _FLOAT32
    return _BFLOAT16 if D <= 64 else _WIDE_BFLOAT16


def _width(D: int) -> int:
    """Return the columns of a block: a power of two, and at least what a product takes."""
    return max(16, triton.next_power_of_2(D))


@torch.compiler.disable  # a graph break: the compiler has nothing to add inside
def attention(
    queries_BHQD: Tensor,
    keys_BHSD: Tensor,
    values_BHSD: Tensor,
    mask: RowMask,
    *,
    is_causal: bool = False,
    key_bias_BS: Tensor | None = None,
    blocks: Blocks | None = None,
) -> Tensor:
    """Return what each query reads, (B, H, Q, D), with dropout of the weights (B, H, Q, S).

    Args:
        queries_BHQD: of at most `MAX_WIDTH` features, and of one dtype with keys and values.
        is_causal: a query reads the keys up to its own place; there are as many of them as queries.
        key_bias_BS: added to the scores of a row's keys, -inf where none may be read; it gets no gradient.
            Each query must have a key that it may read.
        blocks: for tests, which want small ones.
    """
    assert queries_BHQD.dtype == keys_BHSD.dtype == values_BHSD.dtype
    assert queries_BHQD.shape[-1] <= MAX_WIDTH
    assert not is_causal or queries_BHQD.shape[2] == keys_BHSD.shape[2]
    if blocks is None:
        blocks = _blocks(queries_BHQD.dtype, queries_BHQD.shape[-1])
    if key_bias_BS is not None and key_bias_BS.stride(1) != 1:
        key_bias_BS = key_bias_BS.contiguous()
    inputs = (_with_rows(tensor) for tensor in (queries_BHQD, keys_BHSD, values_BHSD))
    read: Tensor = _Attention.apply(*inputs, key_bias_BS, mask.key, mask, is_causal, blocks)
    return read
