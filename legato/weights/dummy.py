"""Weights made up for a model whose files are not there: random, the same each time, of plausible size."""

import math
import zlib
from dataclasses import dataclass

import numpy as np

from legato.backends.stored_weight import StoredWeight, StoredWeights
from legato.program.ops import Program, weights_of

_ONE, _SIGN_AND_MANTISSA = 0x3F80, 0x807F  # in bits of bfloat16
_EXPONENT_BIAS, _MANTISSA_BITS = 127, 7


@dataclass(frozen=True, slots=True)
class DummyHeader:
    """A weight that is made when it is looked up, in bfloat16."""

    shape: tuple[int, ...]
    type: str = "BF16"

    @property
    def num_bytes(self) -> int:
        return 2 * math.prod(self.shape)


def dummy_weights(program: Program) -> StoredWeights:
    """Every weight that a program reads; each depends on its name and shape alone.

    Norms are 1 and biases 0, so that activations stay in the range of a trained model's.
    """
    headers = {each.name: DummyHeader(each.shape) for op in program.ops for each in weights_of(op)}
    return StoredWeights(headers, lambda name: _made(name, headers[name].shape))


def _made(name: str, shape: tuple[int, ...]) -> StoredWeight:
    if len(shape) == 1:
        same = 0 if name.endswith("bias") else _ONE
        return StoredWeight("bf16", shape, np.full(shape, same, np.uint16))
    # The exponent is the same for all, and so only bits are drawn: a tenth of the time of a normal number.
    exponent = _EXPONENT_BIAS - math.ceil(math.log2(shape[-1]) / 2)
    bits = np.random.default_rng(zlib.crc32(name.encode())).integers(0, 2**16, shape, np.uint16)
    bits &= np.uint16(_SIGN_AND_MANTISSA)
    bits |= np.uint16(exponent << _MANTISSA_BITS)
    return StoredWeight("bf16", shape, bits)
