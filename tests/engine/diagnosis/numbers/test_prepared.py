"""Data that NumPy made NaN before it is a tensor of anybody's. Witness: NumPy's own warnings."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)
net = nn.Linear(6, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
def clear():
    optimizer.zero_grad()
""",
    "paddle": """
import numpy as np
import paddle
from paddle import nn
from paddle.io import DataLoader, Dataset
paddle.seed(0)
net = nn.Linear(6, 1)
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
def clear():
    optimizer.clear_grad()
""",
}

# A window of a sensor that stood still: what is wrong is in NumPy, far from where it becomes a tensor.
WINDOWS = """
rng = np.random.default_rng(0)
series = rng.normal(size=(5, 60)).astype("float32")
series[3, 20:34] = 1.5
class Windows(Dataset):
    def normalised(self, past):
        return (past - past.mean()) / past.std()  # CAUSE
    def __getitem__(self, index):
        row, at = divmod(index, 10)
        return self.normalised(series[row, 5 * at : 5 * at + 6])
    def __len__(self):
        return 50
for x in DataLoader(Windows(), batch_size=5):
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    clear()
"""

# Returns of prices, one of which is 0, computed as the module is loaded.
RETURNS = """
prices = np.exp(np.random.default_rng(0).normal(size=(40, 7)).cumsum(1) * 0.1)
prices[23, 4] = 0.0
def returns(of):
    logs = np.log(of)  # CAUSE
    return np.diff(logs)
table = returns(prices).clip(-1e30).astype("float32")
table[table < -1e20] = np.inf
class Rows(Dataset):
    def __init__(self, of):
        self.of = of
    def __getitem__(self, index):
        return self.of[index]
    def __len__(self):
        return len(self.of)
for x in DataLoader(Rows(table), batch_size=8):
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    clear()
"""

# NumPy warns at two places: which of them it was is not known, and neither is named as the cause.
SEVERAL = """
print(np.sqrt(np.float32(-1.0)))
""" + WINDOWS.replace("  # CAUSE", "")

# It warns, and nothing that is not finite is trained on.
HARMLESS = """
rows = np.random.default_rng(0).normal(size=(32, 6)).astype("float32")
rows[5] = 0.0
class Rows(Dataset):
    def __getitem__(self, index):
        with_nan = rows[index] / np.abs(rows[index]).sum()
        return np.nan_to_num(with_nan)
    def __len__(self):
        return len(rows)
for x in DataLoader(Rows(), batch_size=8):
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    clear()
"""

# A data set that takes the array as it is.
HELD = """
class Rows(Dataset):
    def __init__(self, of):
        self.of = of
    def __getitem__(self, index):
        return self.of[index]
    def __len__(self):
        return len(self.of)
for x in DataLoader(Rows(features(volume).astype("float32")), batch_size=8):
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    clear()
"""

# NumPy is told to keep quiet.
QUIET = (
    """
def features(volume):
    with np.errstate(all="ignore"):
        return np.diff(np.log(volume))  # CAUSE
volume = np.random.default_rng(0).integers(5, 50, size=(40, 7)).astype("float64")
volume[23, 3] = volume[23, 4] = 0.0
"""
    + HELD
)

# A division that cannot be by 0 stands before the one that is, in one block.
GUARDED = (
    """
def features(volume):
    with np.errstate(divide="ignore", invalid="ignore"):
        share = volume / GUARD
        return share / volume.sum(0)  # CAUSE
volume = np.random.default_rng(0).integers(5, 50, size=(40, 6)).astype("float64")
volume[:, 3] = 0.0
print("NaN", int(np.isnan(features(volume)).sum()))
"""
    + HELD
)
GUARDS = {
    "a largest": "np.maximum(volume.sum(1, keepdims=True), 1)",
    "a sum": "(volume.sum(1, keepdims=True) + 1e-6)",
    "a number": "50.0",
    "a range": "np.clip(volume, 1e-3, None)",
    "on lines of its own": """np.maximum(
            volume.sum(1, keepdims=True),
            1,
        )""",
}
# What is no guard; here the second division is by what is never 0.
BARE = {
    "a largest of 0": "np.maximum(volume, 0)  # CAUSE",
    "a range from 0": "np.clip(volume, 0, 10)  # CAUSE",
}
BARED = GUARDED.replace("share / volume.sum(0)  # CAUSE", "share / volume.sum(1, keepdims=True)")

# The attribute is what a method gives, which calls the one that divides.
SCALED = """
class Rows(Dataset):
    def __init__(self, rows):
        self.of = self.scaled(rows).astype("float32")
    def scaled(self, rows):
        return self.over(rows - rows.mean(0), rows.std(0))
    def over(self, rows, spread):
        with np.errstate(all="ignore"):
            out = np.empty_like(rows)
            out[:] = rows / spread  # CAUSE
        return out
    def __getitem__(self, index):
        return self.of[index]
    def __len__(self):
        return len(self.of)
rows = np.random.default_rng(0).normal(size=(40, 6))
rows[:, 3] = 21.5
""" + HELD[HELD.index("for x in") :].replace('Rows(features(volume).astype("float32"))', "Rows(rows)")

# What is made quietly is appended to an attribute by a class of the program's: the block only calls that.
APPENDED = """
class Windows(Dataset):
    def __init__(self, series):
        self.x, self.y = [], []
        for row in series:
            for at in range(0, 60, 6):
                past = row[at : at + 6]
                self.x.append((past - past.mean()) / past.std())  # CAUSE
                self.y.append(at)
        self.x = np.stack(self.x)
    def __getitem__(self, index):
        return self.x[index]
    def __len__(self):
        return len(self.x)
series = np.random.default_rng(0).normal(size=(5, 60)).astype("float32")
series[3, 12:36] = 1.5
with np.errstate(all="ignore"):
    windows = Windows(series)
for x in DataLoader(windows, batch_size=5):
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    clear()
"""

# It keeps quiet everywhere: by its own setting, or by a filter of warnings. One line may have made it.
EVERYWHERE = """
import warnings
HUSH
def features(volume):
    logs = np.log(volume)  # CAUSE
    return np.diff(logs)
volume = np.random.default_rng(0).integers(5, 50, size=(40, 7)).astype("float64") / 10
volume[23, 3] = volume[23, 4] = 0.0
""" + HELD.replace("self.of = of", "self.of = TAKE(of)")
SETTING = EVERYWHERE.replace("HUSH", 'np.seterr(all="ignore")')
FILTER = EVERYWHERE.replace("HUSH", 'warnings.filterwarnings("ignore")')
# Two lines could have: only of minus infinity is it known which, for a logarithm makes that.
DIVIDED = SETTING.replace("return np.diff(logs)", "return np.diff(logs) / np.diff(logs).std()")
MINUS = SETTING.replace("return np.diff(logs)", "return logs[:, :6] / np.array([2.0]).sum()")

# Several lines of one function prepare it, two of which divide: the one that the array with NaN comes from.
TABLE = """
np.seterr(all="ignore")
class Table(Dataset):
    def __init__(self, rows):
        price = rows @ np.arange(6)
        mean, spread = rows.mean(axis=0), rows.std(axis=0)
        rows = (rows - mean) / spread  # CAUSE
        rows = np.clip(rows, -3, 3)
        self.x = TAKE(rows.astype("float32"))
        self.y = TAKE(((price - price.mean()) / price.std()).astype("float32"))
    def __getitem__(self, index):
        return self.x[index], self.y[index]
    def __len__(self):
        return len(self.x)
rows = np.random.default_rng(0).normal(size=(40, 6))
rows[:, 3] = 1.0
loader = DataLoader(Table(rows), batch_size=8)
for x, y in loader:
    loss = (net(x)[:, 0] - y).square().mean()
    loss.backward()
    optimizer.step()
    clear()
"""
# A function that is called for it divides, in another one than the result is taken in.
LOADED = """
np.seterr(all="ignore")
def scaled(rows):
    lowest = rows.min(axis=0)
    span = rows.max(axis=0) - lowest
    out = (rows - lowest) / span  # CAUSE
    return 2 * out - 1
def load():
    rows = np.random.default_rng(0).normal(size=(40, 6))
    weights = 1 / np.arange(1.0, 41.0)
    rows[:, 3] = 1.0
    return weights, scaled(rows).astype("float32")
weights, x = load()
x = TAKE(x)
for _ in range(4):
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    clear()
"""
# The attribute of a data set is a copy of what another line divides; the arrays are gone.
COPIED = """
np.seterr(all="ignore")
class Series(Dataset):
    def __init__(self, rows, heights):
        change = rows[:, 1:] - rows[:, :-1]
        ratios = change / rows[:, :-1]  # CAUSE
        self.x = ratios.astype("float32")
        self.y = (heights / heights.max()).astype("float32")
    def __getitem__(self, index):
        return self.x[index], self.y[index]
    def __len__(self):
        return len(self.x)
rows = np.random.default_rng(0).integers(1, 9, size=(40, 7)).astype("float64")
rows[3, 2] = rows[3, 3] = 0.0
loader = DataLoader(Series(rows, rows[:, :1]), batch_size=8)
for x, y in loader:
    loss = (net(x) - y).square().mean()
    loss.backward()
    optimizer.step()
    clear()
"""
WAYS = {"table": TABLE, "loaded": LOADED, "copied": COPIED}

PROGRAMS = {"setting": SETTING, "filter": FILTER, "divided": DIVIDED, "minus": MINUS}
PROGRAMS |= {"appended": APPENDED, "scaled": SCALED, "quiet": QUIET, "windows": WINDOWS, "returns": RETURNS}
PROGRAMS |= {f"guarded, {name}": GUARDED.replace("GUARD", guard) for name, guard in GUARDS.items()}
PROGRAMS |= {f"bare, {name}": BARED.replace("GUARD", guard) for name, guard in BARE.items()}
PROGRAMS |= WAYS | {"several": SEVERAL, "harmless": HARMLESS}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    take = "torch.from_numpy" if request.param == "torch" else "paddle.to_tensor"
    programs = {name: HEAD[request.param] + text.replace("TAKE", take) for name, text in PROGRAMS.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), programs)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"numbers-prepared-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize(("name", "warning"), [("windows", "invalid value"), ("returns", "divide by zero")])
def test_the_line_that_numpy_warned_of(runs: dict[str, Run], name: str, warning: str) -> None:
    first = runs[name].check_first("nonfinite")
    assert warning in " ".join(first["evidence"]), first
    assert "the data" in first["message"]


@each
@pytest.mark.parametrize("name", ["quiet", "scaled"])
def test_the_block_in_which_numpy_keeps_quiet(runs: dict[str, Run], name: str) -> None:
    first = runs[name].check_first("nonfinite")
    assert first["confidence"] <= 0.75 and "say nothing" in " ".join(first["evidence"]), first
    assert not [each for each in runs[name].every if each["kind"] == "lost-update"], "NaN does not change"


@each
@pytest.mark.parametrize("name", [*(f"guarded, {name}" for name in GUARDS), *(f"bare, {name}" for name in BARE)])
def test_of_a_block_the_line_whose_divisor_may_be_zero(runs: dict[str, Run], name: str) -> None:
    first = runs[name].check_first("nonfinite")
    assert first["confidence"] <= 0.75 and "say nothing" in " ".join(first["evidence"]), first
    assert runs[name].plain.startswith("NaN 40\n"), runs[name]


@each
def test_what_is_appended_within_such_a_block(runs: dict[str, Run]) -> None:
    first = runs["appended"].check_first("nonfinite")
    assert "Windows.x, 24 NaN" in " ".join(first["evidence"]), "four windows of six that stood still"


@each
@pytest.mark.parametrize("name", ["setting", "filter", "minus"])
def test_the_line_of_which_numpy_says_nothing_anywhere(runs: dict[str, Run], name: str) -> None:
    first = runs[name].check_first("nonfinite")
    assert first["confidence"] <= 0.75 and "say nothing" in " ".join(first["evidence"]), first


@each
@pytest.mark.parametrize("name", WAYS)
def test_the_line_that_divides_among_those_that_prepare_the_data(runs: dict[str, Run], name: str) -> None:
    assert "the data" in runs[name].check_first("nonfinite")["message"]


@each
def test_of_two_quiet_lines_none_is_guessed(runs: dict[str, Run]) -> None:
    (first,) = (each for each in runs["divided"].told if each["kind"] == "nonfinite")
    assert "say nothing" not in " ".join(first["evidence"]) and "np." not in first["cause"]["text"], first


@each
def test_of_two_such_lines_neither_is_the_cause(runs: dict[str, Run]) -> None:
    first = runs["several"].check_first("nonfinite")
    assert sum("NumPy warned" in told for told in first["evidence"]) == 2, first
    assert not {"past", "sqrt"} & set(first["cause"]["text"].replace("(", " ").split()), first


@each
def test_a_warning_alone_is_no_finding(runs: dict[str, Run]) -> None:
    runs["harmless"].check_healthy()
