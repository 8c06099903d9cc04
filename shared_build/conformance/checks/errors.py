"""Bad input raises one type of error with one text on every backend, and nothing is written."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from .. import data, layouts, ulp
from ..registry import Variant, check
from ..run import Run
from ..spec import Case, ErrorCase, Spec

FORM = re.compile(r"^\w+: expected .+, but got .+", re.DOTALL)


def error_variants(spec: Spec) -> Iterator[Variant]:
    for error in spec.errors:
        for route in error.routes:
            if route not in spec.routes():
                continue
            for backend in error.backends:
                case = Case(error.id, error.args, error.options)
                extra = {"error": error, "backend": backend, "route": route}
                yield Variant(f"{error.id}-{route}-{backend}", case, error.dtype, extra)


@check("errors", error_variants)
def errors(run: Run) -> None:
    """The exception has the exact type, matches the pattern, and reads "<op>: expected .., but got .."."""
    error: ErrorCase = run.extra["error"]
    run.device = "meta" if run.extra["backend"] == "meta" else "cpu"
    tensors = run.inputs(grad=error.grad)
    for name, other in error.aliases.items():
        tensors[name] = tensors[other]
    before = {
        n: layouts.whole_buffer(t).clone()
        for n, t in tensors.items()
        if t is not None and run.device == "cpu"
    }
    fn = run.spec.routes()[run.extra["route"]]
    try:
        if run.extra["backend"] == "fake":
            with FakeTensorMode() as mode:
                fake = {n: t if t is None else mode.from_tensor(t) for n, t in tensors.items()}
                for name, other in error.aliases.items():
                    fake[name] = fake[other]
                fn(**fake, **error.options)
        else:
            fn(**tensors, **error.options)
    except Exception as raised:
        text = str(raised)
        run.require(
            type(raised) is error.exception,
            f"{error.exception.__name__} was expected, but {type(raised).__name__} was raised: {text}",
        )
        run.require(re.search(error.match, text), f"the message does not match {error.match!r}: {text}")
        if error.exception in (ValueError, IndexError):
            run.require(
                FORM.match(text), f"the message is not of the form 'op: expected .., but got ..': {text}"
            )
    else:
        run.fail(f"{error.exception.__name__} was expected, but the call was accepted")
    for name, saved in before.items():
        now = layouts.whole_buffer(tensors[name])
        run.require(ulp.same_values(now, saved), f"{name} was written before the error was raised")


def missing_argument_variants(spec: Spec) -> Iterator[Variant]:
    for case in spec.select("core")[:1]:
        yield Variant(case.id, case, torch.float32)


@check("strict_dtypes", missing_argument_variants)
def strict_dtypes(run: Run) -> None:
    """Integer and complex tensors in place of float arguments raise; they are never converted silently."""
    for name in data.differentiable(run.case):
        for dtype in (torch.int64, torch.complex64, torch.bool):
            for backend in ("cpu", "meta"):
                tensors = run.inputs()
                tensors[name] = torch.ones(tensors[name].shape).to(dtype)
                given = {n: t if t is None else t.to(backend) for n, t in tensors.items()}
                try:
                    run.spec.op(**given, **run.options())
                except ValueError as error:
                    run.require(FORM.match(str(error)), f"{name} as {dtype} on {backend}: {error}")
                    continue
                run.fail(f"{name} as {dtype} on {backend} was accepted")
