"""The list of mends that can be taken back keeps up with the code."""

from __future__ import annotations

import pytest

from tests.life.mends import MENDS, Mend
from tests.life.taken_back import ROOT


@pytest.mark.parametrize("mend", MENDS, ids=lambda mend: mend.name)
def test_each_mend_stands_in_the_code_once(mend: Mend) -> None:
    for file, text, _ in mend.changes:
        assert (ROOT / "spark_throttle" / file).read_text().count(text) == 1, f"{file}: {text}"
