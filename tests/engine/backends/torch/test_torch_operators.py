"""The tap of operators on real torch: what is told, and that everything is as it was once it is out."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")

from torch.overrides import TorchFunctionMode  # noqa: E402

from adbg.engine.backends.base import OperatorCall, Watcher  # noqa: E402
from adbg.engine.backends.torch.observing.operators import OperatorTap  # noqa: E402


class Told(Watcher):
    def __init__(self) -> None:
        self.calls: list[OperatorCall] = []
        self.threads: set[int] = set()

    def operator(self, call: OperatorCall) -> None:
        torch.ones(2).add_(1)  # an operator of the watcher's own
        self.calls.append(call)
        self.threads.add(threading.get_ident())

    @property
    def names(self) -> list[str]:
        return [call.name for call in self.calls]


class Counting(TorchFunctionMode):
    def __init__(self) -> None:
        self.names: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


def modes():
    return [torch._C._get_function_stack_at(at) for at in range(torch._C._len_torch_function_stack())]


@pytest.fixture
def tap():
    tap, told = OperatorTap(), Told()
    compile = torch.compile
    tap.put_in(told)
    yield tap, told
    tap.take_out()
    assert modes() == []
    assert torch.compile is compile


def test_calls_are_told_as_they_are_written(tap):
    _, told = tap
    x = torch.ones(2, 3)
    x.add_(1)
    y = torch.cat([x, x])
    y[0] = 5
    with torch.no_grad():
        torch.nn.functional.cross_entropy(y, torch.tensor([0, 1, 2, 0]))
    add, cat, item = (next(call for call in told.calls if call.name == name) for name in ("add_", "cat", "__setitem__"))
    assert add.versions == (0,) and add.operands[0]._version == 2 - 1 and add.results[0] is x
    assert [id(each) for each in cat.operands] == [id(x), id(x)] and cat.results[0] is y
    assert item.lines[0].line == test_calls_are_told_as_they_are_written.__code__.co_firstlineno + 5
    assert told.calls[-1].name == "cross_entropy" and not told.calls[-1].grad_mode
    assert "log_softmax" not in told.names  # inside of cross_entropy


def test_an_operator_that_raises(tap):
    _, told = tap
    with pytest.raises(RuntimeError, match="mat1 and mat2") as raised:
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert told.calls[-1].error is raised.value
    files = [entry.path.name if hasattr(entry.path, "name") else str(entry.path) for entry in raised.traceback]
    assert not any("operators.py" in file and "test_" not in file for file in files)


def test_modes_of_the_program_in_any_order():
    tap, told = OperatorTap(), Told()
    with Counting() as outer:
        tap.put_in(told)
        with Counting() as inner:
            torch.ones(2).exp()
            tap.take_out()
            torch.ones(2).log()
            tap.put_in(told)
        torch.ones(2).sin()
        assert modes()[-1] is outer
    torch.ones(2).cos()
    tap.take_out()
    assert modes() == []
    assert inner.names == ["ones", "exp", "ones", "log"]
    assert outer.names == ["ones", "exp", "ones", "log", "ones", "sin"]
    assert told.names == ["ones", "exp", "ones", "sin", "ones", "cos"]


def test_devices_as_context_and_as_default():
    tap, told = OperatorTap(), Told()
    with torch.device("meta"):
        tap.put_in(told)
        assert torch.ones(2).is_meta
    assert torch.ones(2).device.type == "cpu"
    torch.set_default_device("meta")
    try:
        assert torch.ones(2).is_meta
        tap.take_out()
        assert torch.ones(2).is_meta and len(modes()) == 1
        tap.put_in(told)
    finally:
        torch.set_default_device(None)
    tap.take_out()
    assert modes() == []
    assert told.names.count("ones") == 3


def test_taken_out_within_a_call(tap):
    """As at the end of a backward, while torch has the mode aside."""
    tap, told = tap
    w = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1)
    loss = w.square().sum()
    loss.register_hook(lambda grad: tap.take_out())
    loss.backward()
    assert modes() == []
    before = len(told.calls)
    w.exp()
    assert len(told.calls) == before
    optimizer.step()
    assert modes() == []


def test_the_program_compiles(tap):
    tap, told = tap
    seen = []

    def backend(graph, inputs):
        seen.append(len(graph.graph.nodes))
        return graph.forward

    run = torch.compile(lambda x: x.sin() + 1, backend=backend)
    before = len(told.calls)
    for _ in range(3):
        assert run(torch.zeros(2)).tolist() == [1.0, 1.0]
    assert len(seen) == 1
    assert len(told.calls) == before
    assert tap.problem and modes() == []


def test_other_threads_and_other_calls_are_left_alone(tap):
    _, told = tap
    thread = threading.Thread(target=lambda: torch.ones(3).exp())
    thread.start()
    thread.join()
    assert told.calls == []
    x = torch.ones(2, 3)
    before = len(told.calls)
    assert (x.shape, x.dim(), x.requires_grad, len(x), x.dtype) == ((2, 3), 2, False, 2, torch.float32)
    assert len(told.calls) == before


def test_the_warning_of_a_gradient_that_is_none_is_of_its_line(tap):
    value = torch.ones(2, requires_grad=True) * 2
    with pytest.warns(UserWarning, match="not a leaf") as caught:
        assert value.grad is None
    assert caught[0].filename == __file__


def test_fast_paths_are_taken_as_without_it(tap):
    """In evaluation an encoder layer computes with one fused kernel, unless a function mode is on."""
    _, told = tap
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    with torch.no_grad():
        layer(torch.ones(1, 3, 8))
        assert "_transformer_encoder_layer_fwd" in told.names
        with Counting() as theirs:
            layer(torch.ones(1, 3, 8))
    assert "_transformer_encoder_layer_fwd" not in theirs.names, "a mode of the program's own counts as ever"


def test_a_view_that_torch_lets_nobody_ask_about_is_left_out(tap):
    asked = []

    class Asking(Watcher):
        def operator(self, call: OperatorCall) -> None:
            asked.append([call.name, *(each.is_leaf for each in (*call.operands, *call.results))])

    tap[0].watcher = Asking()
    torch.nn.Embedding(4, 2, padding_idx=0)
    assert ["fill_"] in asked, "told, without the view that was filled"
    assert ["normal_", True, True] in asked


def test_a_parameter_of_what_has_a_graph_is_told():
    Parameter = torch.nn.Parameter
    before = vars(Parameter)["__new__"]
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    tap, told = OperatorTap(), Told()
    tap.put_in(told)
    try:
        made = Parameter(y)
        Parameter(torch.zeros(2))
        Parameter(x)
        Parameter(y.detach(), requires_grad=False)
        assert type(made) is Parameter and made.is_leaf and made.data_ptr() == y.data_ptr()
    finally:
        tap.take_out()
    assert vars(Parameter)["__new__"] is before
    (call,) = [each for each in told.calls if each.name == "Parameter"]
    assert call.operands[0] is y and call.results[0] is made
    assert call.lines[0].line == test_a_parameter_of_what_has_a_graph_is_told.__code__.co_firstlineno + 8


def test_tensors_over_arrays_are_told():
    numpy = pytest.importorskip("numpy")
    theirs = torch.from_numpy, torch.frombuffer
    tap, told = OperatorTap(), Told()
    tap.put_in(told)
    array = numpy.arange(4, dtype="float32")
    try:
        one, other = torch.from_numpy(array), torch.frombuffer(array, dtype=torch.float32, count=2)
        with pytest.raises(TypeError):
            torch.from_numpy([1.0])
        thread = threading.Thread(target=torch.from_numpy, args=(array,))
        thread.start()
        thread.join()
    finally:
        tap.take_out()
    assert (torch.from_numpy, torch.frombuffer) == theirs
    assert told.names == ["from_numpy", "frombuffer", "from_numpy"]
    assert told.calls[0].results[0] is one and told.calls[1].results[0] is other and told.calls[2].error is not None
    assert all(each.lines[0].file == __file__ for each in told.calls)
    assert one.data_ptr() == other.data_ptr() == array.ctypes.data
