"""What is particular to one toy: prompts, options, audio rows, streamed text."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.errors import PlanError
from models.spec import OptionValue, PlanRequest
from models.toy import audio_in, delayed, interleaved, mixed, streamed, tone
from models.toy.base import BOS, EOS, PAD, TEXT_LOW
from tests.models.toy.reference import Spoken, Stream, speak

DELAYED, INTERLEAVED, MIXED = delayed.load(), interleaved.load(), mixed.load()
AUDIO_IN, STREAMED, TONE = audio_in.load(), streamed.load(), tone.load()


# Guidance and sampling.


def test_the_companion_has_its_own_shorter_prompt_without_the_text():
    plan = DELAYED.plan(PlanRequest(text="hello", voice="soft"))
    assert plan.companion is not None
    mark = TEXT_LOW + 1
    assert plan.ids[:, 0].tolist() == [mark, *(TEXT_LOW + byte for byte in b"hello"), BOS]
    assert plan.companion.ids[:, 0].tolist() == [mark, BOS]
    assert plan.guidance_scale == 3.0


def test_guidance_of_one_makes_no_companion():
    plan = DELAYED.plan(PlanRequest(text="hello", options={"guidance": 1.0}))
    assert plan.companion is None


def test_a_temperature_overrides_every_codebook():
    plan = DELAYED.plan(PlanRequest(text="hello", options={"temperature": 0.25}))
    assert {name: sampling.temperature for name, sampling in plan.sampling.items()} == {
        f"codebook{n}": 0.25 for n in range(4)
    }


def test_an_all_zero_row_counts_in_the_shared_table():
    """The zero-rows companion must see id 0 of column 0, as OpusLM's family does."""
    zero = MIXED.embed(torch.zeros(1, 3, dtype=torch.int64), torch.tensor([-1]))
    assert torch.equal(zero[0], MIXED.table.weight[0])


@pytest.mark.parametrize("n_letters", [0, 1, 5])
def test_mixed_says_as_many_letters_as_asked(n_letters: int):
    request = PlanRequest(text="hi", options={"reply_letters": n_letters, "frames": 3})
    spoken = speak(MIXED, MIXED.plan(request))
    assert len(MIXED.detokenize_text(spoken.text_ids)) == n_letters
    assert len(spoken.frames) == 3


# Shared prefix.


def test_streams_of_a_voice_share_their_first_rows():
    first = INTERLEAVED.plan(PlanRequest(text="one", voice="bruno"))
    second = INTERLEAVED.plan(PlanRequest(text="another", voice="bruno"))
    other = INTERLEAVED.plan(PlanRequest(text="one", voice="alba"))
    n_shared = first.prefix_rows
    assert n_shared >= 2 * 16  # more than two pages of the default size
    assert torch.equal(first.ids[:n_shared], second.ids[:n_shared])
    assert first.prefix_key == second.prefix_key != other.prefix_key
    assert not torch.equal(first.ids[:n_shared], other.ids[:n_shared])


# Tone.


@pytest.mark.parametrize(("speed", "n_frames"), [(1.0, 9), (2.0, 5), (0.5, 18), (3, 3)])
def test_the_tone_lasts_as_long_as_the_text_at_its_speed(speed: float, n_frames: int):
    plan = TONE.plan(PlanRequest(text="  ten chars ", options={"speed": speed}))
    assert len(speak(TONE, plan).frames) == n_frames


# Audio rows in.


def heard(
    n_samples: int = 8000, rate_hz: int = 16_000, loudness: float = 1.0, **options: OptionValue
) -> PlanRequest:
    audio = (loudness * np.cos(np.arange(n_samples) / 7)).astype(np.float32)
    return PlanRequest(text="", audio=audio, audio_rate_hz=rate_hz, options=options)


@pytest.mark.parametrize(("n_samples", "rate_hz"), [(8000, 16_000), (24_000, 48_000), (1, 16_000)])
def test_each_80_ms_of_audio_is_a_row(n_samples: int, rate_hz: int):
    n_rows = -(-n_samples // int(0.08 * rate_hz))
    plan = AUDIO_IN.plan(heard(n_samples, rate_hz))
    assert plan.embeds is not None
    assert plan.embed_mask is not None
    mask = [False, False, *[True] * n_rows, False]
    assert plan.embed_mask.tolist() == mask
    assert plan.embeds.shape == (n_rows + 3, 32)
    assert bool((plan.embeds.abs().sum(dim=1) > 0).equal(torch.tensor(mask)))
    assert plan.ids[:, 0].tolist() == [BOS, audio_in.AUDIO_MARK, *[PAD] * n_rows, EOS]


def test_what_was_heard_decides_the_answer():
    quiet, loud = (speak(AUDIO_IN, AUDIO_IN.plan(heard(loudness=x))) for x in (0.1, 1.0))
    assert quiet.rows != loud.rows


@pytest.mark.parametrize(
    ("audio", "rate_hz", "code"),
    [
        (np.zeros(10, np.float32), None, "empty_audio"),
        (np.zeros(0, np.float32), 16_000, "empty_audio"),
        (np.array([0.0, np.nan], np.float32), 16_000, "invalid_audio"),
        (np.array([0.0, np.inf], np.float32), 16_000, "invalid_audio"),
        (np.zeros(31 * 8000, np.float32), 8000, "audio_too_long"),
    ],
)
def test_audio_that_cannot_be_heard_is_a_named_error(
    audio: np.ndarray, rate_hz: int | None, code: str
):
    with pytest.raises(PlanError) as caught:
        AUDIO_IN.plan(PlanRequest(text="", audio=audio, audio_rate_hz=rate_hz))
    assert (caught.value.code, caught.value.param) == (code, "input_audio")


def test_without_audio_there_is_nothing_to_answer():
    with pytest.raises(PlanError) as caught:
        AUDIO_IN.plan(PlanRequest(text=""))
    assert (caught.value.code, caught.value.param) == ("missing_audio", "input_audio")


@pytest.mark.parametrize(
    ("n_letters", "n_frames", "order"),
    [
        (5, 6, "TTTAAAATTAAA"),
        (7, 2, "TTTAATTTTA"),
        (0, 3, "AAAA"),
        (3, 0, "TTTA"),
        (3, 4, "TTTAAAAA"),
        (0, 0, "A"),
    ],
)
def test_text_and_speech_take_turns(n_letters: int, n_frames: int, order: str):
    """The last A is the row of the end mark."""
    spoken = speak(AUDIO_IN, AUDIO_IN.plan(heard(reply_letters=n_letters, frames=n_frames)))
    assert "".join("TA"[phase] for phase in spoken.phases) == order
    assert (len(spoken.text_ids), len(spoken.frames)) == (n_letters, n_frames)


# Streamed text.


def speak_in_pieces(pieces: list[str], **options: OptionValue) -> Spoken:
    """Open with the first piece, give each further one when the stream starves."""
    plan = STREAMED.plan(PlanRequest(text=pieces[0], is_text_final=False, options=options))
    stream = Stream(STREAMED, plan)
    for at, piece in enumerate(pieces[1:], start=1):
        while stream.step():
            pass
        is_final = at == len(pieces) - 1
        stream.text += STREAMED.extend(plan, piece, is_final=is_final).tolist()
        stream.is_text_final = is_final
    while stream.step():
        pass
    return stream.spoken


def test_one_text_id_goes_with_each_row_then_an_end_mark_then_pads():
    spoken = speak(STREAMED, STREAMED.plan(PlanRequest(text="hi")))
    column = [row[0] for row in spoken.rows]
    assert column == [TEXT_LOW + ord("h"), TEXT_LOW + ord("i"), EOS, PAD, PAD, PAD]
    assert len(spoken.frames) == 2 + streamed.N_TAIL
    assert spoken.n_starved == 0


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, 11), max_size=5))
def test_text_cut_anywhere_gives_the_same_speech(cuts: list[int]):
    text = "Grüße, 🙂!"
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(bounds)]
    whole = speak(STREAMED, STREAMED.plan(PlanRequest(text=text)))
    streamed_ = speak_in_pieces([*pieces, ""])
    assert streamed_.rows == whole.rows
    assert streamed_.frames == whole.frames
    assert streamed_.is_finished


def test_a_stream_starves_when_its_text_is_spent():
    spoken = speak_in_pieces(["ab", "c", ""])
    assert spoken.n_starved == 2
    assert len(spoken.frames) == 3 + streamed.N_TAIL


def test_a_stream_may_open_without_text_and_be_ended_without_any():
    spoken = speak_in_pieces(["", ""])
    assert spoken.is_finished
    assert len(spoken.frames) == streamed.N_TAIL


def test_frames_asked_for_end_the_stream_before_its_text():
    spoken = speak_in_pieces(["abcdef", ""], frames=2)
    assert (spoken.is_finished, len(spoken.frames), spoken.n_starved) == (True, 2, 0)


def test_more_text_than_fits_is_a_named_error():
    plan = STREAMED.plan(PlanRequest(text="a", is_text_final=False))
    with pytest.raises(PlanError) as caught:
        STREAMED.extend(plan, "x" * (streamed.TEXT_CAPACITY + 1), is_final=True)
    assert caught.value.code == "text_too_long"


@pytest.mark.parametrize("model", [DELAYED, TONE], ids=["toy-delayed", "toy-tone"])
def test_models_that_take_text_whole_refuse_more(model: delayed.DelayedToy | tone.ToneToy):
    plan = model.plan(PlanRequest(text="a"))
    with pytest.raises(PlanError) as caught:
        model.extend(plan, "b", is_final=True)
    assert caught.value.code == "text_not_streamed"
