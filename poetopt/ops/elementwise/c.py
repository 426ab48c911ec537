"""Element-wise ops: one loop nest each, with strides of 0 for broadcasting. Outputs may overwrite operands."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from poetopt.graph import OWN_DOMAIN
from poetopt.ops.runtimes.c.axes import broadcast
from poetopt.ops.runtimes.c.kernel import (
    C_TYPES,
    Arguments,
    Call,
    Kernel,
    block,
    broadcast_strides,
    c_float,
    nest,
    read,
    written,
)

REAL = frozenset({"float32"})
SCALARS = frozenset({"float32", "float64"})
NUMBERS = SCALARS | {"int64", "int32"}
ANY = frozenset(C_TYPES)
LETTERS = "abcdefgh"
"""Names of the operands' elements in an expression."""

Expression = str | Callable[[Call], str]
"""C expression of the result in terms of the elements {a}, {b}, {c}, ..."""


def elementwise(
    op_type: str,
    expression: Expression,
    types: frozenset[str] = REAL,
    in_place: tuple[int, ...] = (0,),
    *,
    domain: str = "",
    constants: tuple[int, ...] = (),
    refuses: Callable[[Call], str | None] | None = None,
) -> Kernel:
    """Return a kernel of the element-wise family.

    Parameters
    ----------
    types
        Element types of operands and result; bool is always allowed.
    refuses
        Returns further reasons to refuse a call.
    """

    def refused(call: Call) -> str | None:
        if len(call.inputs) > len(LETTERS):
            return f"{op_type} of {len(call.inputs)} operands is not supported; at most {len(LETTERS)} are"
        for tensor in (*call.inputs, *call.outputs):
            if tensor is not None and tensor.dtype not in types | {"bool"}:
                return f"{op_type} of {tensor.dtype} is not supported (supported: {', '.join(sorted(types)) or 'bool'})"
        return refuses(call) if refuses is not None else None

    def code(call: Call, arguments: Arguments) -> str:
        y = call.output()
        text = expression if isinstance(expression, str) else expression(call)
        declared, strides = [], {}
        for letter, tensor, at in zip(LETTERS, call.inputs, arguments.inputs, strict=False):
            if tensor is not None and f"{{{letter}}}" in text:
                declared.append(read(letter, tensor, at))
                strides[letter] = broadcast_strides(tensor.shape, y.shape)
        strides["y"] = broadcast_strides(y.shape, y.shape)
        if y.dtype == "bool":
            text = f"(uint8_t)({text})"
        return block(*declared, written("y", y, arguments.outputs[0]), nest(y.shape, strides, f"{{y}} = {text};"))

    return Kernel(
        op_type, code, domain, refused, in_place=in_place, constants=constants,
        tilings=lambda call: broadcast(code, call), headers=("po_math.h",),
    )  # fmt: skip


def _is_float32(call: Call) -> bool:
    return call.output().dtype == "float32"


def _clip(call: Call) -> str:
    text = "{a}"
    for letter, function, index in (("b", "max", 1), ("c", "min", 2)):
        if call.has(index):
            compared = ">" if function == "max" else "<"
            text = (
                f"po_{function}({text}, {{{letter}}})"
                if _is_float32(call)
                else f"({text} {compared} {{{letter}}} ? {text} : {{{letter}}})"
            )
    return text


def _hard_sigmoid(call: Call) -> str:
    alpha, beta = call.number("alpha", 0.2), call.number("beta", 0.5)
    scaled = f"{c_float(alpha)} * {{a}}" + (f" + {c_float(beta)}" if beta else "")
    return f"po_max(0.0f, po_min(1.0f, {scaled}))"


def _gelu(call: Call) -> str:
    return "po_gelu_tanh" if call.text("approximate", "none") == "tanh" else "po_gelu"


def _power(call: Call) -> str:
    if call.output().dtype == "float64":
        return "po_power({a}, {b})"
    value = call.value(1)
    exponent = float(np.asarray(value).reshape(-1)[0]) if value is not None and value.size == 1 else None
    products = {
        0.0: "1.0f",
        1.0: "{a}",
        2.0: "{a} * {a}",
        3.0: "{a} * {a} * {a}",
        0.5: "sqrtf({a})",
        -1.0: "1.0f / {a}",
    }
    return products.get(exponent, "powf({a}, {b})") if exponent is not None else "powf({a}, {b})"


def _integer_division(call: Call, kind: str) -> str:
    """Return an integer division that has a result for a divisor of 0 too, which data may contain."""
    return f"po_{kind}_{'int64_t' if call.output().dtype == 'int64' else 'int32_t'}({{a}}, {{b}})"


def _quotient(call: Call) -> str:
    return "{a} / {b}" if call.output().dtype in SCALARS else _integer_division(call, "div")


def _modulo(call: Call) -> str:
    if _is_float32(call):
        return "fmodf({a}, {b})"
    if call.output().dtype == "float64":
        return "fmod({a}, {b})"
    return (
        f"({C_TYPES[call.output().dtype]})po_mod({{a}}, {{b}})"
        if not call.integer("fmod", 0)
        else _integer_division(call, "rest")
    )


def _mod_refuses(call: Call) -> str | None:
    floats = call.output().dtype in SCALARS
    return "Mod of floats without fmod=1 is not supported" if floats and not call.integer("fmod", 0) else None


def _fold_operands(pair: str) -> Callable[[Call], str]:
    def fold(call: Call) -> str:
        text = "{a}"
        for letter, _ in zip(LETTERS[1:], call.inputs[1:], strict=False):
            text = pair.format(text, f"{{{letter}}}")
        return text

    return fold


def _sign(call: Call) -> str:
    zero, one = ("0.0f", "1.0f") if _is_float32(call) else ("0", "1")
    return f"({{a}} > {zero} ? {one} : {{a}} < {zero} ? -{one} : {zero})"


def _clip_gradient(call: Call) -> str:
    """Return the expression of the gradient where the result lies strictly between the bounds, else 0."""
    tests = [
        f"{{b}} {sign} {c_float(call.number(name, 0.0))}"
        for sign, name in ((">", "low"), ("<", "high"))
        if name in call.node.attributes
    ]
    return f"({' && '.join(tests)} ? {{a}} : 0.0f)"


EITHER = (0, 1)
KERNELS: tuple[Kernel, ...] = (
    elementwise("Add", "{a} + {b}", NUMBERS, EITHER),
    elementwise("Sub", "{a} - {b}", NUMBERS, EITHER),
    elementwise("Mul", "{a} * {b}", NUMBERS, EITHER),
    elementwise("Div", _quotient, NUMBERS | {"uint8"}, EITHER),
    elementwise("Mod", _modulo, NUMBERS | {"uint8"}, EITHER, refuses=_mod_refuses),
    elementwise("Pow", _power, SCALARS),
    elementwise("Sum", _fold_operands("{} + {}"), REAL, ()),
    elementwise("Max", _fold_operands("po_max({}, {})"), REAL, ()),
    elementwise("Min", _fold_operands("po_min({}, {})"), REAL, ()),
    elementwise(
        "Mean", lambda call: f"({_fold_operands('{} + {}')(call)}) * {c_float(1 / len(call.inputs))}", REAL, ()
    ),
    elementwise("Neg", "-{a}", NUMBERS),
    elementwise("Abs", "fabsf({a})"),
    elementwise("Sign", _sign, NUMBERS),
    elementwise("Sqrt", lambda call: "sqrtf({a})" if _is_float32(call) else "sqrt({a})", SCALARS),
    elementwise("Reciprocal", "1.0f / {a}", SCALARS),
    elementwise("Exp", "po_exp({a})"),
    elementwise("Log", "po_log({a})"),
    elementwise("Sin", "sinf({a})"),
    elementwise("Cos", "cosf({a})"),
    elementwise("Erf", "po_erf({a})"),
    elementwise("Tanh", "po_tanh({a})"),
    elementwise("Sigmoid", "po_sigmoid({a})"),
    elementwise("Softplus", "(po_max({a}, 0.0f) + po_log(1.0f + po_exp(-fabsf({a}))))"),
    elementwise("Softsign", "{a} / (1.0f + fabsf({a}))"),
    elementwise("Relu", "po_max({a}, 0.0f)"),
    elementwise("LeakyRelu", lambda call: f"({{a}} >= 0.0f ? {{a}} : {c_float(call.number('alpha', 0.01))} * {{a}})"),
    elementwise("PRelu", "({a} >= 0.0f ? {a} : {a} * {b})"),
    elementwise(
        "Elu",
        lambda call: f"({{a}} >= 0.0f ? {{a}} : {c_float(call.number('alpha', 1.0))} * (po_exp({{a}}) - 1.0f))",
    ),
    elementwise("Clip", _clip, NUMBERS),
    elementwise("HardSigmoid", _hard_sigmoid),
    elementwise("HardSwish", "{a} * po_max(0.0f, po_min(1.0f, {a} * 0.16666667f + 0.5f))"),
    elementwise("Gelu", lambda call: f"{_gelu(call)}({{a}})"),
    elementwise("Greater", "{a} > {b}", NUMBERS, ()),
    elementwise("GreaterOrEqual", "{a} >= {b}", NUMBERS, ()),
    elementwise("Less", "{a} < {b}", NUMBERS, ()),
    elementwise("LessOrEqual", "{a} <= {b}", NUMBERS, ()),
    elementwise("Equal", "{a} == {b}", NUMBERS, ()),
    elementwise("Not", "!{a}", frozenset()),
    elementwise("And", "{a} && {b}", frozenset(), EITHER),
    elementwise("Or", "{a} || {b}", frozenset(), EITHER),
    elementwise("Where", "({a} ? {b} : {c})", NUMBERS, (1, 2)),
    elementwise(
        "Cast",
        lambda call: "{a} != 0" if call.output().dtype == "bool" else f"({C_TYPES[call.output().dtype]}){{a}}",
        ANY,
        (),
    ),
    # inputs: the operand (or the incoming gradient), the factor, the mask
    elementwise("Dropout", "({c} ? {a} * {b} : 0.0f)", domain=OWN_DOMAIN),
    # gradients: the incoming gradient is first, and the result may overwrite it
    elementwise("Relu.grad_input", "({b} > 0.0f ? {a} : 0.0f)", domain=OWN_DOMAIN),
    elementwise("Clip.grad_input", _clip_gradient, domain=OWN_DOMAIN),
    elementwise("Sigmoid.grad_input", "{a} * ({b} * (1.0f - {b}))", domain=OWN_DOMAIN),
    elementwise("Tanh.grad_input", "{a} * (1.0f - {b} * {b})", domain=OWN_DOMAIN),
    elementwise("Gelu.grad_input", lambda call: f"{{a}} * {_gelu(call)}_slope({{b}})", domain=OWN_DOMAIN),
)
