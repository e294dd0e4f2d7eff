"""Every operation, alone and in small decoders, on the cpu backend: near the reference, bits of the row."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from legato.backends.backend import CompiledProgram, KVLayout
from legato.backends.cpu import CpuBackend, CpuOptions
from legato.backends.reference import ReferenceBackend
from legato.backends.stored_weight import as_stored, to_bfloat16
from legato.core.errors import ModelError
from legato.program.builder import Builder
from legato.program.ops import Activation, Program, Value, Weight
from tests.backends.programs import (
    EPS,
    HEAD_DIM,
    HIDDEN,
    KV_DIM,
    KV_HEADS,
    POSITIONS,
    Q_DIM,
    WIDE,
    Write,
    gemma,
    gpt2,
    qwen,
    random_weights,
    vector,
    write_program,
)
from tests.backends.steps import Chunk, make_inputs
from tests.kernels.conftest import open_or_fail
from tests.kernels.tapes import relative_error

KV = KVLayout(num_layers=2, num_pages=16, page_size=16, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM)
PROMPT = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 32, 38, 4, 6, 26, 43, 3, 8, 32]
SQUARE, UP = Weight("square", (HIDDEN, HIDDEN)), Weight("up", (HIDDEN, HIDDEN))
EXPERTS = [
    (
        Weight(f"{each}.gate", (WIDE, HIDDEN)),
        Weight(f"{each}.up", (WIDE, HIDDEN)),
        Weight(f"{each}.down", (HIDDEN, WIDE)),
    )
    for each in range(5)
]
BIAS, UP_BIAS = vector("bias", HIDDEN), vector("up_bias", HIDDEN)


def gated(function: Activation) -> Write:
    def write(p: Builder, x: Value) -> Value:
        return p.gate(*p.split(p.linear(x, SQUARE, UP, biases=(BIAS, UP_BIAS)), HIDDEN, HIDDEN), function)

    return write


OPERATIONS: dict[str, Write] = {
    "layer_norm": lambda p, x: p.layer_norm(x, vector("norm", HIDDEN), BIAS, eps=EPS),
    "rms_norm of heads": lambda p, x: p.rms_norm(x, vector("norm", HIDDEN // 4), eps=EPS),
    "linear with a bias": lambda p, x: p.linear(x, SQUARE, biases=(BIAS,)),
    "linear with a bias, added": lambda p, x: p.add(x, p.linear(x, SQUARE, biases=(BIAS,))),
    "product added to what is read again": lambda p, x: p.add(p.add(x, p.linear(x, SQUARE)), x),
    "product that is read twice": lambda p, x: (
        p.add(x, p.activate(y := p.linear(x, SQUARE), Activation.RELU)) and p.add(x, y)
    ),
    "learned positions": lambda p, x: p.add(x, p.position_embedding(Weight("embed", (POSITIONS, HIDDEN)))),
    "learned positions at an offset": lambda p, x: p.add(
        x, p.position_embedding(Weight("embed", (POSITIONS, HIDDEN)), offset=2)
    ),
    "scale": lambda p, x: p.scale(p.linear(x, SQUARE), 0.3),
    "soft_cap": lambda p, x: p.soft_cap(p.linear(x, SQUARE), 1.5),
    "experts": lambda p, x: p.experts(
        x,
        p.linear(x, Weight("router", (5, HIDDEN))),
        EXPERTS,
        top_k=2,
        is_normalized=True,
        function=Activation.SILU,
    ),
    "experts, shares as they are, added": lambda p, x: p.add(
        x,
        p.experts(
            x,
            p.linear(x, Weight("router", (5, HIDDEN))),
            EXPERTS,
            top_k=3,
            is_normalized=False,
            function=Activation.GELU_TANH,
        ),
    ),
    "value added to itself": lambda p, x: p.add(x, x),
    **{f"{function}": lambda p, x, function=function: p.activate(x, function) for function in Activation},
    **{f"gated {function}": gated(function) for function in Activation},
}
PROGRAMS = {name: write_program(write) for name, write in OPERATIONS.items()} | {
    "gpt2": gpt2(),
    "qwen": qwen(),
    "gemma": gemma(),
}


def compile_cpu(
    program: Program, weights: Mapping[str, np.ndarray], float_weights: str = "f32", num_threads: int = 2
) -> CompiledProgram:
    options = CpuOptions(float_weights, is_quantized=True, max_tokens=64, max_samples=64)
    kv = replace(KV, dtype="bfloat16" if float_weights == "bf16" else "float32")
    return CpuBackend(open_or_fail(num_threads), options).compile(program, weights, kv)


@pytest.mark.parametrize(("float_weights", "bound"), [("f32", 1e-5), ("bf16", 4e-3)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_result_is_the_references_for_the_same_rounded_weights(
    name: str, float_weights: str, bound: float
) -> None:
    program = PROGRAMS[name]
    weights = random_weights(program)
    if float_weights == "bf16":
        for key, values in weights.items():
            if values.ndim == 2:
                weights[key] = (to_bfloat16(values).astype(np.uint32) << 16).view(np.float32)
    step = make_inputs(Chunk(PROMPT, 0, [5, 2]), Chunk([9, 8], 17, [1, 3]))
    wanted = ReferenceBackend().compile(program, weights, KV).forward(step)
    found = compile_cpu(program, weights, float_weights).forward(step)
    assert np.std(wanted) > 0.1
    assert relative_error(found, wanted) <= bound


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("name", PROGRAMS)
def test_bits_are_those_of_the_request_alone(name: str, num_threads: int) -> None:
    program = PROGRAMS[name]
    weights = random_weights(program)
    alone = compile_cpu(program, weights).forward(make_inputs(Chunk(PROMPT, 0, [0, 1]))).copy()

    compiled = compile_cpu(program, weights, num_threads=num_threads)
    compiled.forward(make_inputs(Chunk(PROMPT[:7], 0, [4, 9]), Chunk([1, 2], 0, [3])))
    together = compiled.forward(
        make_inputs(Chunk([3], 2, [3]), Chunk(PROMPT[7:], 7, [4, 9]), Chunk(PROMPT[::-1], 0, [6, 7]))
    )

    assert together[1:14].tobytes() == alone[7:].tobytes()


def test_step_beyond_the_learned_positions_is_refused() -> None:
    program = write_program(
        lambda p, x: p.add(x, p.position_embedding(Weight("embed_positions", (4, HIDDEN))))
    )
    compiled = compile_cpu(program, random_weights(program))
    with pytest.raises(ValueError, match="positions: 4, must be below 4"):
        compiled.forward(make_inputs(Chunk([7], 4, [0])))


def normed_and_not(p: Builder, x: Value) -> Value:
    q, k, v = p.split(p.linear(x, Weight("qkv", (Q_DIM + 2 * KV_DIM, HIDDEN))), Q_DIM, KV_DIM, KV_DIM)
    norm = vector("norm", HEAD_DIM)
    normed = p.rms_norm(q, norm, eps=EPS), p.rms_norm(k, norm, eps=EPS), v
    a, b = (p.attention(*parts, 0, head_dim=HEAD_DIM, scale=1.0) for parts in (normed, (q, k, v)))
    return p.add(a, b)


REFUSED: dict[str, tuple[Write, str]] = {
    "a gate of two products": (
        lambda p, x: p.gate(p.linear(x, SQUARE), p.linear(x, UP), Activation.SILU),
        "the cpu backend reads the parts of one product in Gate",
    ),
    "a part that is read elsewhere": (
        lambda p, x: p.activate(p.split(x, HIDDEN // 2, HIDDEN // 2)[1], Activation.RELU),
        r"the cpu backend cannot compute %2\[tokens, 32\] of this program",
    ),
    "heads that are read normed and as they were": (
        normed_and_not,
        r"the cpu backend norms heads in place, but %2\[tokens, 128\] is read elsewhere too",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_program_that_cannot_be_fused_is_refused_with_the_reason(name: str) -> None:
    write, reason = REFUSED[name]
    program = write_program(write)
    with pytest.raises(ModelError, match=reason):
        compile_cpu(program, random_weights(program))


def test_program_over_stored_weights_takes_its_biases_from_any_float_format() -> None:
    program = PROGRAMS["linear with a bias"]
    weights = random_weights(program)
    half = {name: as_stored(values).bfloat16() for name, values in weights.items()}
    step = make_inputs(Chunk(PROMPT, 0, [0, 1]))
    decoded = {name: values.float32() for name, values in half.items()}
    wanted = ReferenceBackend().compile(program, decoded, KV).forward(step)
    found = compile_cpu(program, half, "bf16").forward(step)
    assert relative_error(found, wanted) <= 4e-3
