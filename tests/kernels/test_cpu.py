import pytest
import torch
import torch.nn.functional as F

from ldt.kernels import cpu


@pytest.fixture(params=["0", "1"])
def choice(request, monkeypatch):
    monkeypatch.setenv("LDT_ONEDNN", request.param)
    cpu._pays.cache_clear()
    yield request.param
    cpu._pays.cache_clear()


def amx(there, monkeypatch):
    """Whether the CPU has AMX, as the module under test sees it."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: there)
    cpu._pays.cache_clear()


@pytest.mark.parametrize("shape", [(7, 16), (2, 5, 16), (0, 16)])
def test_linear_equals_torch_with_all_gradients(choice, shape):
    x, weight, bias = torch.randn(shape), torch.randn(8, 16), torch.randn(8)
    leaves = [t.double().requires_grad_() for t in (x, weight, bias)]
    exact = F.linear(*leaves)
    up = torch.randn(exact.shape)
    expected = torch.autograd.grad(exact, leaves, up.double())
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    ours = cpu.linear(*leaves)
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)
    for a, b in zip(torch.autograd.grad(ours, leaves, up), expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


def test_with_amx_float32_is_never_rounded_though_asked_for(choice, monkeypatch):
    amx(True, monkeypatch)
    assert cpu.choices() == {"linear": False, "bmm": False}
    with cpu.chosen({"linear": True, "bmm": True}):
        assert cpu.choices() == {"linear": False, "bmm": False}


def test_the_process_setting_is_restored_even_after_an_error(choice, monkeypatch):
    amx(False, monkeypatch)
    settings = torch.backends.mkldnn.matmul
    before = settings.fp32_precision
    inside = []

    def fail():
        with cpu.fast_matmul(torch.zeros(1)):
            inside.append(settings.fp32_precision == "bf16")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert inside == [choice == "1"]
    assert settings.fp32_precision == before


def test_the_probe_refuses_a_library_that_is_fast_but_inexact(monkeypatch):
    monkeypatch.delenv("LDT_ONEDNN", raising=False)
    amx(False, monkeypatch)

    class Setting:
        fp32_precision = "ieee"

    real = torch.nn.functional.linear

    def rounded(x, w):
        if Setting.fp32_precision == "bf16":
            return real(x.bfloat16(), w.bfloat16()).float()
        return real(x, w)

    seconds = iter([2.0, 1.0] * 6)
    monkeypatch.setattr(cpu, "_seconds", lambda run: next(seconds))
    monkeypatch.setattr(torch.backends.mkldnn, "matmul", Setting)
    monkeypatch.setattr(cpu.F, "linear", rounded)
    cpu._pays.cache_clear()
    assert not cpu._pays("linear")
    monkeypatch.setattr(cpu.F, "linear", real)
    seconds = iter([2.0, 1.0] * 6)
    cpu._pays.cache_clear()
    assert cpu._pays("linear")
    cpu._pays.cache_clear()
