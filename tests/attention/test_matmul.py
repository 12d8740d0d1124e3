import pytest
import torch
import torch.nn.functional as F

from ldt.attention import matmul


@pytest.fixture(params=["0", "1"])
def choice(request, monkeypatch):
    monkeypatch.setenv("LDT_ONEDNN", request.param)
    monkeypatch.setattr(matmul, "EXACT", float("inf"))  # whatever this CPU makes of it
    matmul._pays.cache_clear()
    yield request.param
    matmul._pays.cache_clear()


@pytest.fixture
def product(monkeypatch):
    """Sets what float32 products come out as where oneDNN is taken: "exact" or "rounded"."""

    class Setting:
        fp32_precision = "ieee"

    plain = F.linear

    def linear(x, w):
        if Setting.fp32_precision == "bf16" and linear.comes_out == "rounded":
            return plain(x.bfloat16(), w.bfloat16()).float()
        return plain(x, w)

    def comes_out(what):
        linear.comes_out = what
        matmul._pays.cache_clear()

    monkeypatch.setattr(torch.backends.mkldnn, "matmul", Setting)
    monkeypatch.setattr(matmul.F, "linear", linear)
    comes_out("exact")
    yield comes_out
    matmul._pays.cache_clear()


@pytest.mark.parametrize("shape", [(7, 16), (2, 5, 16), (0, 16)])
def test_linear_equals_torch_with_all_gradients(choice, shape):
    x, weight, bias = torch.randn(shape), torch.randn(8, 16), torch.randn(8)
    leaves = [t.double().requires_grad_() for t in (x, weight, bias)]
    exact = F.linear(*leaves)
    up = torch.randn(exact.shape)
    expected = torch.autograd.grad(exact, leaves, up.double())
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    ours = matmul.linear(*leaves)
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)
    for a, b in zip(torch.autograd.grad(ours, leaves, up), expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("trained", [True, False])
def test_the_input_is_kept_for_the_gradient_of_the_weight_alone(choice, trained):
    x, weight = torch.randn(7, 16, requires_grad=True), torch.randn(8, 16, requires_grad=trained)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        out = matmul.linear(x, weight, torch.randn(8))
    assert any(each.data_ptr() == x.data_ptr() for each in kept) == trained
    torch.testing.assert_close(torch.autograd.grad(out.sum(), x)[0], weight.sum(0).expand(7, 16))


@pytest.mark.parametrize("choice", ["0", "1"])
def test_float32_is_never_rounded_though_asked_for(choice, product, monkeypatch):
    monkeypatch.setenv("LDT_ONEDNN", choice)
    assert matmul.choices()["linear"] == (choice == "1")
    with matmul.chosen({"linear": True}):
        assert matmul.choices()["linear"]
        product("rounded")
        assert not matmul.choices()["linear"]
    assert not matmul.choices()["linear"]


def test_the_process_setting_is_restored_even_after_an_error(choice):
    settings = torch.backends.mkldnn.matmul
    before = settings.fp32_precision
    inside = []

    def fail():
        with matmul.fast_matmul(torch.zeros(1)):
            inside.append(settings.fp32_precision == "bf16")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert inside == [choice == "1"]
    assert settings.fp32_precision == before


@pytest.mark.parametrize("faster", [False, True])
def test_the_probe_takes_a_library_that_is_faster_and_exact(faster, product, monkeypatch):
    monkeypatch.delenv("LDT_ONEDNN", raising=False)
    monkeypatch.setattr(matmul, "_held_back", lambda: False)
    seconds = iter([2.0, 1.0 if faster else 1.9] * 10)
    monkeypatch.setattr(matmul, "seconds", lambda run: next(seconds))
    assert matmul._pays("linear") == faster
    product("rounded")
    assert not matmul._pays("linear")


def test_where_mkl_is_held_back_linear_takes_onednn_whatever_the_clock_says(product, monkeypatch):
    monkeypatch.delenv("LDT_ONEDNN", raising=False)
    monkeypatch.setattr(matmul, "_held_back", lambda: True)
    seconds = iter([1.0, 2.0] * 5)  # bmm is timed
    monkeypatch.setattr(matmul, "seconds", lambda run: next(seconds))
    assert matmul.choices() == {"linear": True, "bmm": False}
    product("rounded")
    assert not matmul._pays("linear")


def test_mkl_is_held_back_on_avx512_that_intel_has_not_made(monkeypatch):
    monkeypatch.setattr(matmul.Path, "exists", lambda path: True)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)

    def held_back(maker, capability):
        monkeypatch.setattr(matmul.Path, "read_text", lambda path: f"vendor_id\t: {maker}\n")
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
        return matmul._held_back()

    assert held_back("AuthenticAMD", "AVX512")
    assert not held_back("AuthenticAMD", "AVX2")
    assert not held_back("GenuineIntel", "AVX512")


@pytest.mark.parametrize(
    ("capabilities", "library", "found"),
    [
        ({"avx2": True, "avx512_bf16": False, "amx_bf16": False}, True, False),
        ({"avx512_bf16": True, "amx_bf16": False}, True, True),
        ({"bf16": True}, True, True),
        ({"bf16": True}, False, False),  # torch then has no product that uses it
        (None, True, False),  # a torch that does not tell
    ],
)
def test_bfloat16_needs_instructions_and_a_library(monkeypatch, capabilities, library, found):
    if capabilities is None:
        monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    else:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: library)
    assert matmul.has_bfloat16() is found
