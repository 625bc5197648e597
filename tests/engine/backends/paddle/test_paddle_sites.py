"""Which VLOG sites follow the global level after adbg's levels by module are over."""

from __future__ import annotations

import ctypes

import pytest

pytest.importorskip("paddle.autograd")

from adbg.engine.backends.paddle.native.sites import LogSites


def test_sites_of_the_scripts_own_level_keep_it():
    """Four sites of one module, as glog keeps them: a pointer to a level each."""
    site, unasked, module = (ctypes.c_int32(number) for number in (0, 1000, 4))
    level, fresh, own = map(ctypes.addressof, (site, unasked, module))
    words = (ctypes.c_uint64 * 4)(own, level, fresh, fresh)  # the script's, a follower, two that have not run
    begin = ctypes.addressof(words)
    sites = LogSites()
    sites._sites = [(level, fresh, [(begin, begin + 32)])]
    for _ in range(2):
        sites.ask_again()
        assert list(words) == [own, fresh, fresh, fresh]
        words[1] = words[2] = own  # they run, and find their module's level
        sites.follow()
        assert list(words) == [own, level, level, fresh]
        words[2] = fresh
