"""OpusLM: what a checkpoint must hold, what a request may ask, columns, ends, and what drains."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from models.base import TextFeed
from models.errors import PlanError, WeightError
from models.layers.delay import NEVER
from models.opuslm import dialogue
from models.opuslm.config import needs
from models.opuslm.facts import AUDIO, BRIDGE, DRAIN, END, MOST, PAST, ROW, TEXT
from models.opuslm.model import OpusLmModel, is_in, load, read_spec
from models.spec import PHASE_COLUMN, Message, PlanRequest
from tests.models.opuslm.tiny import (
    VOICE,
    make_checkpoint,
    make_dialogue_checkpoint,
    voice_codes,
)

NO_FEED = TextFeed(
    ids=torch.zeros(1, 0).long(), n_ids=torch.zeros(1).long(), is_final=torch.ones(1).bool()
)
N_CODES = 64
PAD, EOS, SYSTEM, USER, ASSISTANT, SPEECH, WORDS, SPEAKER = 0, 5, 8, 9, 10, 34, 35, 37
N_VOICE_ROWS = 40


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("opuslm"))


@pytest.fixture(scope="module")
def dialogue_checkpoint(tmp_path_factory) -> Path:
    return make_dialogue_checkpoint(tmp_path_factory.mktemp("dialogue"))


@pytest.fixture(scope="module")
def model(checkpoint) -> OpusLmModel:
    return load(checkpoint)


@pytest.fixture(scope="module")
def answering(dialogue_checkpoint) -> OpusLmModel:
    return dialogue.load(dialogue_checkpoint)


@pytest.fixture
def folder(checkpoint, tmp_path) -> Path:
    """A copy to be spoilt."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def change_config(folder: Path, change) -> None:
    path = folder / "config.yaml"
    values = yaml.safe_load(path.read_text())
    change(values)
    path.write_text(yaml.safe_dump(values))


# Files.


def test_the_facts_come_from_the_files(checkpoint, model):
    spec = read_spec(checkpoint)
    assert spec == model.spec
    assert spec.tasks == ("speak",)
    assert (spec.frame.sample_rate_hz, spec.frame.samples_per_frame) == (16_000, 320)
    assert [column.delay_rows for column in spec.columns] == list(range(9))
    assert [column.ids for column in spec.columns[:2]] == [(EOS, 316), (316, 380)]
    assert spec.backbone.max_positions == 2048
    assert model.config.decoder.eps == 1e-6


def test_the_model_that_answers_is_told_by_its_config(
    checkpoint, dialogue_checkpoint, answering, tmp_path
):
    assert is_in(checkpoint)
    assert not dialogue.is_in(checkpoint)
    assert dialogue.is_in(dialogue_checkpoint)
    assert not is_in(dialogue_checkpoint)
    assert not is_in(checkpoint / "espnet_codec_dac_large")
    (tmp_path / "config.yaml").write_text("codec: dac\n")
    assert not is_in(tmp_path)
    spec = answering.spec
    assert (spec.name, spec.tasks, spec.gives_text) == ("opuslm-dialogue", ("converse",), True)
    assert [phase.name for phase in spec.phases] == ["audio", "drain", "text", "bridge"]


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (lambda c: c["transformer_conf"].pop("hf_model_tag"), r"transformer_conf\.hf_model_tag"),
        (lambda c: c.update(token_list=["<pad>"]), r"token_bias\.ssl = "),
        (lambda c: c["token_bias"].pop("codec"), r"does not state token_bias\.codec"),
        (lambda c: c["token_list"].remove("<sos/eos>"), "token_list has no <sos/eos>"),
        (lambda c: c.update(codec_token_per_frame=8), "codec_token_per_frame 8"),
        (lambda c: c.update(codec_token_in_use=5), "codec_token_in_use = 5"),
        (lambda c: c.update(token_list="many"), "token_list as a list of names"),
        (lambda c: c.pop("corelm_conf"), "does not state corelm_conf"),
        (lambda c: c.pop("subword_model"), "does not state subword_model"),
    ],
)
def test_what_is_absent_or_contradicts_itself_is_named(folder, change, shown):
    change_config(folder, change)
    with pytest.raises(WeightError, match=shown):
        load(folder)


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        ("backbone", "put that of a/backbone there"),
        ("tokenizer", "put that of a/tokenizer into"),
        ("espnet_codec_dac_large", "put ftshijt/espnet_codec_dac_large_v1.4_360epoch into"),
    ],
)
def test_what_must_lie_beside_it_is_named(folder, part, shown):
    shutil.rmtree(folder / part)
    with pytest.raises(WeightError, match=shown):
        load(folder)


def test_a_detokenizer_may_lie_right_in_its_folder(folder, model):
    place = folder / "espnet_codec_dac_large"
    for file in (place / "exp").rglob("*.*"):
        if file.is_file():
            shutil.move(file, place / file.name)
    (place / "meta.yaml").unlink()
    assert read_spec(folder) == model.spec
    (place / "meta.yaml").write_text("yaml_files:\n  train_config: ../config.yaml\n")
    with pytest.raises(WeightError, match="outside of its folder"):
        read_spec(folder)


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("model_type", "gpt2", "model_type 'gpt2' is none of llama, olmo2"),
        ("vocab_size", 300, "vocab_size 300 is not the 256 ids"),
        ("hidden_act", "gelu", "hidden_act = 'gelu'"),
        ("num_hidden_layers", None, "does not state num_hidden_layers"),
    ],
)
def test_a_backbone_that_is_not_the_checkpoint_s_is_named(folder, key, value, shown):
    path = folder / "backbone" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(WeightError, match=shown):
        load(folder)


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (lambda t: t.pop("corelm.emb.weight"), r"corelm\.emb\.weight is missing"),
        (lambda t: t.pop("corelm.lm_head.weight"), r"corelm\.lm_head\.weight is missing"),
        (
            lambda t: t.update({"corelm.head_emb.weight": torch.ones(5, 48)}),
            r"head_emb\.weight is \(5, 48\), expected a row for each of 9 columns",
        ),
        (
            lambda t: t.pop("corelm.decoders.model.layers.1.self_attn.k_norm.weight"),
            r"lacks corelm\.decoders\.model\.layers\.1\.self_attn\.k_norm\.weight",
        ),
        (lambda t: t.update({"corelm.stray": torch.ones(1)}), r"does not know: corelm\.stray"),
        (
            lambda t: t.update({"corelm.emb.weight": torch.ones(9, 48)}),
            r"corelm\.emb\.weight is \(9, 48\)",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(folder, change, shown):
    tensors = torch.load(folder / "model.pth", weights_only=True)
    change(tensors)
    torch.save(tensors, folder / "model.pth")
    with pytest.raises(WeightError, match=shown):
        load(folder)


def test_a_tied_head_is_the_table(folder):
    tensors = torch.load(folder / "model.pth", weights_only=True)
    del tensors["corelm.lm_head.weight"]
    torch.save(tensors, folder / "model.pth")
    change_config(folder, lambda c: c["corelm_conf"].update(share_emb=True))
    tied = load(folder)
    # What the shifts add is the same for every hidden state.
    logits = tied.heads(torch.eye(48))[0] - tied.heads(torch.zeros(1, 48))[0]
    torch.testing.assert_close(logits, tied.table.weight[EOS:316].T, atol=1e-5, rtol=0)


def test_a_checkpoint_in_half_precision_is_computed_in_float32(folder):
    tensors = torch.load(folder / "model.pth", weights_only=True)
    halved = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    torch.save(halved, folder / "model.pth")
    half = load(folder)
    torch.save({name: tensor.float() for name, tensor in halved.items()}, folder / "model.pth")
    hidden = torch.eye(48)
    for got, wanted in zip(half.heads(hidden), load(folder).heads(hidden), strict=True):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, wanted)


def test_what_is_fetched_from_the_hub_is_what_the_files_name(dialogue_checkpoint):
    read = needs(dialogue_checkpoint)
    assert read.weights == ("2epoch.pth",)
    backbone, tokenizer, dac = read.parts
    assert (backbone.folder, backbone.repository, backbone.weights) == (
        "backbone",
        "a/backbone",
        (),
    )
    assert (tokenizer.folder, tokenizer.repository, tokenizer.weights) == (
        "tokenizer",
        "a/tokenizer",
        (),
    )
    packed = yaml.safe_load((dialogue_checkpoint / dac.folder / "meta.yaml").read_text())
    assert f"{dac.within}/{dac.weights[0]}" == packed["files"]["model_file"]


def test_a_second_file_of_weights_is_refused(folder):
    shutil.copy(folder / "model.pth", folder / "other.pth")
    with pytest.raises(WeightError, match=r"must hold one file .* model\.pth, other\.pth"):
        load(folder)


# Prompts.


def first_column(plan) -> list[int]:
    assert (plan.ids[:, 1:] == PAD).all()
    return plan.ids[:, 0].tolist()


def words(model: OpusLmModel, text: str) -> list[int]:
    ids = model.tokenizer.encode(text, add_special_tokens=False).ids
    return [model.config.text[0] + idx for idx in ids]


def test_speech_is_asked_for_as_in_training(model):
    plan = model.plan(PlanRequest(text="Hi there"))
    assert first_column(plan) == [EOS, 82, WORDS, *words(model, "Hi there"), *[PAD] * 8, SPEECH]
    assert int(plan.state[0]) == AUDIO


def test_an_answer_is_asked_for_with_what_was_said_before(answering):
    said = (
        Message(role="system", text="be kind"),
        Message(role="user", text="Hi"),
        Message(role="assistant", text="Yes?"),
    )
    plan = answering.plan(PlanRequest(text="Go on", messages=said))
    assert first_column(plan) == [
        *(EOS, 88),
        *(USER, WORDS, *words(answering, "Hi"), *[PAD] * 8),
        *(ASSISTANT, WORDS, *words(answering, "Yes?"), EOS, *[PAD] * 8),
        *(USER, WORDS, *words(answering, "Go on"), *[PAD] * 8),
        *(ASSISTANT, WORDS),
    ]
    assert int(plan.state[0]) == TEXT


def test_the_tokenizer_s_first_id_is_written_as_a_blank(model):
    """The reference's preprocessor takes every 0 for a blank, before it shifts the ids."""
    assert model.tokenizer.encode("!", add_special_tokens=False).ids == [0]
    assert first_column(model.plan(PlanRequest(text="Hi!")))[5] == PAD


def test_a_voice_stands_behind_the_text_and_its_codes_are_delayed(model):
    assert model.spec.voices == ("any", VOICE)
    plan = model.plan(PlanRequest(text="Hi", voice=VOICE))
    held = voice_codes(30) + 256
    # The first unit of all is a blank, as in training.
    held[held == 256] = PAD
    text = words(model, "Hi")
    first = [*(EOS, 81, WORDS, *text, *[PAD] * 8), SPEAKER, *held[:, 0], *[PAD] * 10]
    assert plan.ids[:, 0].tolist() == [*first, *[PAD] * 8, SPEECH]
    start = 3 + len(text) + 8 + 1
    for column in range(1, 9):
        codes = plan.ids[:, column].tolist()
        assert codes[start + column : start + column + 30] == held[:, column].tolist()
        assert sum(one != PAD for one in codes) == 30
    plain = model.plan(PlanRequest(text="Hi", voice="any"))
    torch.testing.assert_close(plain.ids, model.plan(PlanRequest(text="Hi")).ids)


def test_a_voice_opens_a_conversation_and_its_rows_are_shared(answering):
    plan = answering.plan(PlanRequest(text="Hi", voice=VOICE))
    n_shared = 2 + 2 + N_VOICE_ROWS + 8
    assert plan.ids[:4, 0].tolist() == [EOS, 88, SYSTEM, SPEAKER]
    assert (plan.ids[n_shared:, 1:] == PAD).all()
    assert plan.ids[n_shared, 0] == USER
    assert (plan.prefix_rows, plan.prefix_key) == (n_shared, "voice")
    assert answering.plan(PlanRequest(text="Hi")).prefix_key is None


def test_a_long_voice_is_cut_to_what_the_model_was_trained_with(folder):
    np.save(folder / "voices" / "bob.npy", voice_codes(90))
    loaded = load(folder)
    assert loaded.spec.voices == read_spec(folder).voices == ("any", VOICE, "bob")
    assert loaded.voices["bob"].shape == (N_VOICE_ROWS, 9)


@pytest.mark.parametrize(
    ("codes", "shown"),
    [
        (voice_codes(5)[:, :8], r"ann\.npy holds int64 \(5, 8\)"),
        (voice_codes(5) / 2, "holds float64"),
        (voice_codes(5)[:, ::-1], "codes in column 0 that are not 0 to 60"),
        (voice_codes(5) + 64 * (np.arange(9) == 8), "codes in column 8 that are not 508 to 572"),
        (None, "cannot be read as codes"),
    ],
)
def test_a_file_that_is_no_voice_is_named(folder, codes, shown):
    path = folder / "voices" / f"{VOICE}.npy"
    if codes is None:
        path.write_bytes(b"RIFF")
    else:
        np.save(path, codes)
    with pytest.raises(WeightError, match=shown):
        load(folder)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (PlanRequest(text=" "), "empty_text"),
        (PlanRequest(text="hi", voice="bob"), "unknown_voice"),
        (PlanRequest(text="hi", language="klingon"), "unsupported_language"),
        (PlanRequest(text="hi", options={"top_k": 0}), "invalid_value"),
        (PlanRequest(text="hi", options={"warmth": 1.0}), "unknown_option"),
        (PlanRequest(text="hi", audio=np.zeros(9, np.float32)), "invalid_reference"),
        (PlanRequest(text="x" * 2000), "prompt_too_long"),
    ],
)
def test_requests_that_cannot_be_served(model, answering, request_, code):
    for one in (model, answering):
        with pytest.raises(PlanError) as caught:
            one.plan(request_)
        assert caught.value.code == code


def test_a_conversation_without_a_user_s_word_at_its_end_has_no_answer(answering):
    said = (Message(role="user", text="Hi"), Message(role="assistant", text="Yes?"))
    with pytest.raises(PlanError, match="nothing to answer"):
        answering.plan(PlanRequest(text="", messages=said))
    assert answering.plan(PlanRequest(text="", messages=said[:1])).max_frames > 250


def test_options_hold_for_speech_and_not_for_text(answering):
    plan = answering.plan(PlanRequest(text="hi", options={"temperature": 0.3, "top_k": 7}))
    assert {name.partition(".")[0] for name in plan.sampling} == {"audio", "drain"}
    assert {(one.temperature, one.top_k) for one in plan.sampling.values()} == {(0.3, 7)}
    assert answering.spec.phases[TEXT].columns[0].sampling.temperature == 0.0


# Rows.


class Rows:
    """Advances a stream through rows that are given."""

    def __init__(self, model: OpusLmModel, phase: int = AUDIO, n_most: int = 1000) -> None:
        self.model = model
        self.state = torch.zeros(1, model.spec.state_size, dtype=torch.int64)
        self.state[:, PHASE_COLUMN], self.state[:, END], self.state[:, MOST] = phase, NEVER, n_most
        self.state[:, PAST:] = PAD
        self.fed: list[list[int]] = []
        self.frames: list[list[int]] = []
        self.text: list[int] = []
        self.is_finished = False

    @property
    def phase(self) -> int:
        return int(self.state[0, PHASE_COLUMN])

    def push(self, row: list[int]) -> None:
        assert not self.is_finished
        step = self.model.advance(self.state, torch.tensor([row]), NO_FEED)
        self.state = step.state
        self.fed.append(step.rows[0].tolist())
        self.frames += [step.frames[0].tolist()] if step.emits else []
        self.text += [int(step.text_ids)] if step.text_ids >= 0 else []
        self.is_finished = bool(step.is_finished)


def noise(model: OpusLmModel, n_rows: int, seed: int) -> list[list[int]]:
    """Ids that each column may hold, with no end among them."""
    generator = torch.Generator().manual_seed(seed)
    spans = [model.config.units, *model.config.code_ranges]
    columns = [torch.randint(low, high, (n_rows,), generator=generator) for low, high in spans]
    return torch.stack(columns, dim=1).tolist()


@pytest.mark.parametrize("n_frames", [1, 2, 8, 9, 50])
def test_delayed_columns_come_back_as_frames_and_blanks_drain(model, n_frames):
    """Column n of frame f is drawn in row f + n, and is blank after the last frame.

    So in the k-th row behind the end the columns up to k are blank, whatever is drawn there.
    """
    rows, stream = noise(model, n_frames + 8, n_frames), Rows(model)
    rows[n_frames][0] = EOS
    for row in rows:
        stream.push(row)
    assert stream.is_finished
    lows = [low for low, _ in model.config.code_ranges]
    expected = [[rows[f + n + 1][n + 1] - lows[n] for n in range(8)] for f in range(n_frames)]
    assert stream.frames == expected
    for number, (fed, drawn) in enumerate(zip(stream.fed, rows, strict=True)):
        n_drained = number - n_frames
        for column in range(9):
            is_blank = column > number or column <= n_drained
            if (number, column) == (n_frames, 0):
                assert fed[0] == EOS
            else:
                assert fed[column] == (PAD if is_blank else drawn[column])
    assert stream.phase == DRAIN
    assert int(stream.state[0, ROW]) == n_frames + 8


def test_an_end_at_the_limit_is_not_the_model_s(model):
    """The engine counts frames and says that they were cut; nothing else ends the stream."""
    rows, stream = noise(model, 13, 3), Rows(model, n_most=5)
    rows[5][0] = EOS
    for row in rows:
        stream.push(row)
    assert len(stream.frames) == 5
    assert not stream.is_finished


def test_an_answer_goes_from_text_over_blanks_and_marks_to_speech(answering):
    stream, low = Rows(answering, TEXT), answering.config.text[0]
    for idx in (low + 7, low + 8, EOS):
        stream.push([idx, *[PAD] * 8])
    assert stream.text == [low + 7, low + 8]
    assert stream.phase == BRIDGE
    for _ in range(10):
        assert stream.phase == BRIDGE
        stream.push([PAD] * 9)
    firsts = [row[0] for row in stream.fed]
    assert firsts == [low + 7, low + 8, EOS, *[PAD] * 8, ASSISTANT, SPEECH]
    assert all(row[1:] == [PAD] * 8 for row in stream.fed)
    assert (stream.phase, int(stream.state[0, ROW])) == (AUDIO, 0)
    rows = noise(answering, 12, 4)
    rows[4][0] = EOS
    for row in rows:
        stream.push(row)
    assert len(stream.frames) == 4
    assert stream.is_finished


def allowed(model: OpusLmModel, phase: int, row: int, n_most: int) -> tuple[bool, bool]:
    """Whether the end, and whether anything else, can be drawn in the first column."""
    state = torch.zeros(1, model.spec.state_size, dtype=torch.int64)
    state[0, :PAST] = torch.tensor([phase, row, 0, n_most, n_most])
    logits = model.constrain(state, model.heads(torch.zeros(1, 48)), NO_FEED)
    finite = logits[0][0].isfinite()
    assert all(one.isfinite().all() for one in logits[1:])
    assert finite[1:].any() == finite[1:].all()
    return bool(finite[0]), bool(finite[1])


def test_an_end_comes_neither_too_early_nor_too_late(answering):
    assert [allowed(answering, AUDIO, row, 9)[0] for row in range(5)] == [False] * 3 + [True] * 2
    assert [allowed(answering, TEXT, row, 9)[0] for row in range(3)] == [False, True, True]
    for phase in (AUDIO, TEXT):
        assert allowed(answering, phase, 8, 9) == (True, True)
        assert allowed(answering, phase, 9, 9) == (True, False)
    # A limit under the least length holds.
    assert allowed(answering, AUDIO, 1, 1) == (True, False)


def test_only_ids_of_a_phase_can_be_drawn(answering):
    audio, drain, text, bridge = answering.spec.phases
    config = answering.config
    assert audio.columns[0].allowed == ((EOS, EOS + 1), config.units)
    assert text.columns[0].allowed == ((EOS, EOS + 1), config.text)
    assert [one.fill for one in drain.columns] == ["forced", *["sampled"] * 8]
    assert [one.fill for one in bridge.columns] == ["derived", *["forced"] * 8]
    # Blanks lie outside of what a column's logits cover.
    assert all(column.ids[0] > PAD for column in answering.spec.columns)


def test_characters_come_whole(answering):
    low = answering.config.text[0]
    ids = [low + idx for idx in answering.tokenizer.encode("aé", add_special_tokens=False).ids]
    assert len(ids) == 3
    texts = [answering.detokenize_text(ids[:n]) for n in (1, 2, 3)]
    assert texts == ["a", "a", "aé"]
