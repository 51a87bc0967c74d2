"""When FlashInfer is used, what is said where it cannot be, and the layers on its kernels."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from engine.attention import flashinfer_step, kernels, make_attention
from engine.attention.flashinfer import FlashInferAttention
from engine.attention.paged import PagedAttention
from engine.config import EngineConfig
from engine.errors import EngineConfigError
from models.layers import fused
from models.layers.mlp import gated
from models.layers.norm import RMSNorm
from models.layers.rotary import Rotary
from models.layers.transformer import BlockStyle, Decoder, cast_decoders
from models.spec import BackboneSpec
from tests.engine import flashinfer_double
from tests.engine.harness import load_toy
from tests.models.toy.reference import FullAttention

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SPEC = BackboneSpec(
    n_layers=2, n_query_heads=4, n_kv_heads=2, head_dim=64, hidden=32, max_positions=64
)


@pytest.fixture
def card(monkeypatch) -> None:
    """A machine with a card and the package, as far as can be asked."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, kernels.PACKAGE, flashinfer_double)
    monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: name)


@pytest.fixture
def fused_here() -> Iterator[None]:
    """The layers take the double's kernels, on the CPU."""
    fused.switch_on(flashinfer_double, "cpu")
    yield
    fused.switch_on(None)


# The choice.


@pytest.mark.usefixtures("card")
@pytest.mark.parametrize(
    ("choice", "device", "dtype", "is_wanted"),
    [
        ("auto", CUDA, torch.bfloat16, True),
        ("flashinfer", CUDA, torch.float16, True),
        ("torch", CUDA, torch.bfloat16, False),
        ("auto", CUDA, torch.float32, False),
        ("auto", CPU, torch.bfloat16, False),
    ],
)
def test_the_kernels_are_used_where_they_are_wanted_and_can_run(choice, device, dtype, is_wanted):
    assert kernels.wants_flashinfer(choice, SPEC, device, dtype) is is_wanted


@pytest.mark.usefixtures("card")
@pytest.mark.parametrize(
    ("device", "dtype", "head_dim", "what"),
    [
        (CPU, torch.bfloat16, 64, "an NVIDIA GPU, and this engine runs on cpu"),
        (CUDA, torch.float32, 64, "float16 and bfloat16, and this engine runs in float32"),
        (CUDA, torch.bfloat16, 80, "64, 128, 256 channels, and those of this model have 80"),
    ],
)
def test_asked_for_where_it_cannot_run_it_says_why(device, dtype, head_dim, what):
    spec = BackboneSpec(
        n_layers=1, n_query_heads=1, n_kv_heads=1, head_dim=head_dim, hidden=8, max_positions=8
    )
    with pytest.raises(EngineConfigError, match=what):
        kernels.wants_flashinfer("flashinfer", spec, device, dtype)


@pytest.mark.usefixtures("card")
def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EngineConfigError, match=r"pip install 'parley\[cuda\]'"):
        kernels.wants_flashinfer("flashinfer", SPEC, CUDA, torch.bfloat16)
    assert not kernels.wants_flashinfer("auto", SPEC, CUDA, torch.bfloat16)
    monkeypatch.setitem(sys.modules, kernels.PACKAGE, None)
    with pytest.raises(EngineConfigError, match=r"pip install 'parley\[cuda\]'"):
        kernels.load_kernels()


def test_the_cpu_has_the_reference():
    toy = load_toy("toy-depth")
    attention = make_attention(toy.spec, EngineConfig(), CPU, torch.float32)
    assert isinstance(attention, PagedAttention)
    with pytest.raises(EngineConfigError, match="NVIDIA"):
        make_attention(toy.spec, EngineConfig(attention="flashinfer"), CPU, torch.float32)


# The build.


def half_attention(module: object) -> FlashInferAttention:
    return FlashInferAttention(
        SPEC,
        n_pages=4,
        page_size=4,
        n_sequences=2,
        device=CPU,
        dtype=torch.bfloat16,
        kernels=module,
    )


def test_the_build_uses_every_kernel_once():
    used = []

    class Counting:
        def __getattr__(self, name: str) -> object:
            used.append(name)
            return getattr(flashinfer_double, name)

    module = Counting()
    attention = half_attention(module)
    kernels.build(attention, SPEC, module, CPU, torch.bfloat16)
    assert set(used) >= {name.split(".")[0] for name in flashinfer_double.SIGNATURES}


def test_kernels_are_built_on_the_device_of_the_model_whatever_thread_builds_them(monkeypatch):
    """A library that asks for the current device of a new thread would be told the first card."""
    current, found = threading.local(), []

    @contextmanager
    def made_current(device: torch.device) -> Iterator[None]:
        current.device = device
        yield
        del current.device

    class Asking:
        def __getattr__(self, name: str) -> object:
            found.append((name, getattr(current, "device", None)))
            return getattr(flashinfer_double, name)

    monkeypatch.setattr(kernels, "made_current", made_current)
    attention, module = half_attention(flashinfer_double), Asking()
    attention._kernels = module
    kernels.build(attention, SPEC, module, CPU, torch.bfloat16)
    assert {name for name, _ in found} > {"rmsnorm", "append_paged_kv_cache", "silu_and_mul"}
    assert {device for _, device in found} == {CPU}


def test_a_plan_is_waited_for_on_the_device_of_its_wrapper(monkeypatch):
    """And not on the current one."""
    recorded = []

    class Event:
        def record(self, stream: object) -> None:
            recorded.append(stream)

        def synchronize(self) -> None:
            recorded.append("waited")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    planner = flashinfer_step.Planner("wrapper", torch.device("cuda:1"))
    for _ in range(2):
        with planner as wrapper:
            assert wrapper == "wrapper"
    assert recorded == ["stream of cuda:1", "waited", "stream of cuda:1"]


@pytest.mark.parametrize(("told", "found"), [(None, "1"), ("0", "0")])
def test_norms_of_all_widths_are_one_module_unless_somebody_says_otherwise(
    told, found, tmp_path, monkeypatch
):
    """The package looks at its environment once, when it is imported."""
    name = kernels.PLAIN_NORMS[0]
    if told is None:
        monkeypatch.delenv(name, raising=False)
    else:
        monkeypatch.setenv(name, told)
    (tmp_path / "flashinfer.py").write_text(f"import os\nFOUND = os.environ.get({name!r})\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, kernels.PACKAGE, raising=False)
    try:
        assert found == kernels.load_kernels().FOUND
    finally:
        sys.modules.pop(kernels.PACKAGE, None)
        os.environ.pop(name, None)


def test_a_build_that_fails_names_the_tools_that_are_missing(monkeypatch):
    class Broken:
        def __getattr__(self, name: str) -> object:
            if name == "rmsnorm":
                raise RuntimeError("Ninja build failed\nmany lines")
            return getattr(flashinfer_double, name)

    module = Broken()
    monkeypatch.setattr(kernels.shutil, "which", lambda name: None if name == "nvcc" else name)
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    with pytest.raises(EngineConfigError) as caught:
        kernels.build(half_attention(module), SPEC, module, CPU, torch.bfloat16)
    message = str(caught.value)
    assert "Ninja build failed" in message
    assert "many lines" not in message
    assert "nvcc not found" in message
    assert "--attention torch" in message


# The layers.


def rows(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3)).to(dtype)


TOLERANCE = {"atol": 0.02, "rtol": 0.02}
"""bfloat16 keeps 8 bits, and the plain form may round once more on its way."""


def both(call) -> tuple[Tensor, Tensor]:
    """The plain answer, and that of the kernels."""
    plain = call()
    fused.switch_on(flashinfer_double, "cpu")
    try:
        return plain, call()
    finally:
        fused.switch_on(None)


@pytest.mark.parametrize("shape", [(5, 24), (5, 3, 24), (2, 5, 3, 24)])
def test_norm(shape):
    norm = RMSNorm(24, 1e-5).to(torch.bfloat16)
    norm.weight.data = rows(24)
    torch.testing.assert_close(*both(lambda: norm(rows(*shape))), **TOLERANCE)


def test_sum_and_norm():
    norm = RMSNorm(24, 1e-5).to(torch.bfloat16)
    norm.weight.data = rows(24)
    plain, got = both(lambda: torch.stack(norm.add(rows(5, 24), rows(5, 24).flip(0))))
    torch.testing.assert_close(plain, got, **TOLERANCE)


def test_gate():
    torch.testing.assert_close(*both(lambda: gated(rows(5, 32))), **TOLERANCE)


@pytest.mark.parametrize("is_interleaved", [False, True])
@pytest.mark.parametrize("n_frequencies", [32, 16])
def test_rotary_halves_neighbours_and_part_of_a_head(is_interleaved, n_frequencies):
    inv_freq = 0.5 ** torch.arange(n_frequencies, dtype=torch.float64)
    rotary = Rotary(64, 300, 1e4, is_interleaved=is_interleaved, inv_freq=inv_freq)
    positions = torch.tensor([0, 7, 299, 7])
    plain, got = both(lambda: rotary(rows(4, 3, 64), positions))
    torch.testing.assert_close(plain, got, **TOLERANCE)
    assert bool((plain[1] != rows(4, 3, 64)[1])[:, : n_frequencies // 2].any())
    assert torch.equal(got[..., 2 * n_frequencies :], rows(4, 3, 64)[..., 2 * n_frequencies :])


@pytest.mark.parametrize("qk_norm", ["none", "head", "row"])
@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_a_decoder_is_the_same_on_kernels_and_leaves_its_input_alone(qk_norm, norm):
    style = BlockStyle(qk_norm=qk_norm, norm=norm)
    torch.manual_seed(5)
    decoder = Decoder(SPEC, inner=48, theta=1e4, style=style).requires_grad_(False)
    cast_decoders(decoder, torch.bfloat16)
    x = rows(6, SPEC.hidden)
    given = x.clone()
    plain, got = both(lambda: decoder(x, torch.arange(6), FullAttention()))
    assert got.dtype == torch.bfloat16
    # Two layers of rounding.
    torch.testing.assert_close(plain, got, atol=0.06, rtol=0.06)
    assert torch.equal(x, given)


@pytest.mark.usefixtures("fused_here")
def test_float32_and_other_devices_keep_the_plain_form(monkeypatch):
    def refuse(*args: object, **named: object) -> None:
        raise AssertionError("a kernel was called")

    for name in ("rmsnorm", "fused_add_rmsnorm", "silu_and_mul"):
        monkeypatch.setattr(flashinfer_double, name, refuse)
    monkeypatch.setattr(flashinfer_double, "apply_rope_with_cos_sin_cache_inplace", refuse)
    decoder = Decoder(SPEC, inner=48, theta=1e4).requires_grad_(False)
    decoder(rows(3, SPEC.hidden, dtype=torch.float32), torch.arange(3), FullAttention())
    fused.switch_on(flashinfer_double, "cuda")
    decoder.to(torch.bfloat16)(rows(3, SPEC.hidden), torch.arange(3), FullAttention())
