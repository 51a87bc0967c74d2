"""On a GPU: recorded steps equal plain ones, FlashInfer and its layers come near to the CPU."""

import pytest
import torch

from loadtest.gpu_check.budget import IS_RIGHT, LeftOut
from loadtest.gpu_check.rows import check_rows
from loadtest.gpu_check.shapes import SHAPES
from loadtest.gpu_check.streams import TO_BE_MADE, checks_of
from loadtest.gpu_check.where import Where

CARD = Where(is_dry=False)
STREAMS = checks_of(TO_BE_MADE, CARD)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


@pytest.mark.parametrize("name", STREAMS)
def test_streams_say_the_same_recorded_plain_and_on_the_cpu(name):
    try:
        found = STREAMS[name]()
    except LeftOut as reason:
        pytest.skip(str(reason))
    assert found[IS_RIGHT], found


@pytest.mark.parametrize("name", SHAPES)
def test_rows_in_half_precision_come_near_to_the_cpu(name):
    pytest.importorskip("flashinfer", reason="needs FlashInfer: pip install 'parley[cuda]'")
    found = check_rows(SHAPES[name], CARD)
    assert found[IS_RIGHT], found
