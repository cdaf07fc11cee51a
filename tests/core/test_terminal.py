"""What a terminal says beside its data. What a reader makes of it is tested with the verifier."""

from __future__ import annotations

import attrs
import pytest

from streamguard.core.dialect import Dialect, Native, OpenAI, Ui
from streamguard.core.errors import Failure
from streamguard.core.framing import FramedEncoder
from streamguard.core.terminal import failure_beside

WHY = Failure("enough", "it is enough", retryable=True)


@pytest.mark.parametrize("dialect", [OpenAI(), Ui()])
def test_a_frame_of_ours_tells_why_its_stream_ended(dialect: Dialect) -> None:
    failed = FramedEncoder(dialect).fail(WHY, "cancelled")[-1]
    assert failed.status == "cancelled"
    assert failure_beside(failed) == WHY


def test_one_of_a_whole_stream_tells_nothing() -> None:
    whole = FramedEncoder(Ui()).finish()[-1]
    assert whole.status == "complete"
    assert failure_beside(whole) is None


def test_native_has_it_in_its_data() -> None:
    failed = FramedEncoder(Native()).fail(WHY)[-1]
    assert failure_beside(attrs.evolve(failed, extra=None)) is None
