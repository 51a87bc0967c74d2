"""On a GPU: recorded steps equal plain ones, FlashInfer and its layers come near to the CPU."""

import pytest
import torch

from loadtest.gpu_check.families import KINDS, check_rows, check_streams
from loadtest.gpu_check.random_models import MODELS
from loadtest.gpu_check.where import Where

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_streams_say_the_same_recorded_plain_and_on_the_cpu(kind):
    found = check_streams(f"toy-{kind}", Where(is_dry=False))
    assert found["is_right"], found


@pytest.mark.parametrize("name", MODELS)
def test_rows_in_half_precision_come_near_to_the_cpu(name):
    pytest.importorskip("flashinfer", reason="needs FlashInfer: pip install 'parley[cuda]'")
    found = check_rows(name, Where(is_dry=False))
    assert found["is_right"], found
