"""Bagpiper: what a checkpoint must hold, what a request may ask, and how rows become messages."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor

from models.bagpiper.config import (
    ASSISTANT,
    AUDIO_MARK,
    BLANK,
    BOS,
    EOS,
    EOT,
    SYSTEM_TEXT,
    TEXT_MARK,
    USER,
    is_bagpiper,
    needs,
)
from models.bagpiper.facts import AUDIO, CHOICE, END, N_MOST, N_ORDERED, ROW, TEXT, TURN
from models.bagpiper.model import BagpiperModel, load, read_spec
from models.bagpiper.phases import PhaseMachine
from models.bagpiper.prompt import start_state
from models.base import TextFeed
from models.errors import PlanError, WeightError
from models.layers.delay import NEVER
from models.spec import PlanRequest
from tests.engine.harness import Engine
from tests.models.bagpiper.tiny import make_checkpoint

NO_FEED = TextFeed(
    ids=torch.zeros(1, 0).long(), n_ids=torch.zeros(1).long(), is_final=torch.ones(1).bool()
)
WEIGHTS, TRAINING, DECODING = "model.pt", "train_bagpiper.yaml", "inference_audio.yaml"
N_COLUMNS, N_CODES = 8, 64


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("bagpiper"))


@pytest.fixture(scope="module")
def model(checkpoint) -> BagpiperModel:
    return load(checkpoint)


@pytest.fixture
def folder(checkpoint, tmp_path) -> Path:
    """A copy to be spoilt."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def change_yaml(path: Path, change: Callable[[dict], object]) -> None:
    values = yaml.safe_load(path.read_text())
    change(values)
    path.write_text(yaml.safe_dump(values, sort_keys=False))


def change_weights(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    held = torch.load(folder / WEIGHTS, weights_only=True)
    change(held["module"])
    torch.save(held, folder / WEIGHTS)


# Checkpoints.


def test_the_family_is_found_by_what_the_files_state(checkpoint):
    assert is_bagpiper(checkpoint)
    spec = read_spec(checkpoint)
    assert spec.name == "bagpiper"
    assert [column.delay_rows for column in spec.columns] == list(range(N_COLUMNS))
    assert (spec.frame.frame_rate_hz, spec.frame.sample_rate_hz) == (50, 16_000)


def test_ids_follow_the_order_in_which_the_config_names_them(checkpoint, folder):
    plain = load(checkpoint).config
    assert plain.text_ids == (256, 528)
    assert plain.code_ids == tuple((528 + 65 * n, 593 + 65 * n) for n in range(N_COLUMNS))

    def turned(values: dict) -> None:
        values["multimodal_io"] = dict(reversed(values["multimodal_io"].items()))

    change_yaml(folder / TRAINING, turned)
    other = load(folder).config
    assert other.code_ids[0] == (256, 321)
    assert other.text_ids == (256 + 8 * 65, 528 + 8 * 65)


def test_an_order_that_is_not_the_recorded_one_is_named(folder):
    recorded = {"special_token": [[0, 256]], "text": [[776, 1048]]}
    change_yaml(folder / TRAINING, lambda values: values.update(vocab_intervals=recorded))
    with pytest.raises(WeightError, match=r"vocab_intervals.text"):
        read_spec(folder)


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("Qwen3-tiny-Base/config.json", "Qwen/Qwen3-tiny-Base"),
        ("Qwen3-tiny-Base/tokenizer.json", "Qwen/Qwen3-tiny-Base"),
        ("xcodec-tiny/config.json", "hf-audio/xcodec-tiny"),
    ],
)
def test_what_lies_in_other_repositories_is_asked_for_by_their_names(folder, missing, named):
    (folder / missing).unlink()
    with pytest.raises(WeightError, match=named) as caught:
        load(folder)
    assert missing in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("delay_interleave", False, "delay_interleave"),
        ("codec_choice", "ESPnet", "codec_choice"),
        ("ssl_choice", "ESPnet", "ssl_choice"),
        ("codec_max_token_per_frame", 4, "codec_max_token_per_frame"),
    ],
)
def test_a_codec_of_another_kind_is_named(folder, key, value, named):
    change_yaml(
        folder / TRAINING,
        lambda values: values["multimodal_io"]["discrete_audio"].update({key: value}),
    )
    with pytest.raises(WeightError, match=named):
        read_spec(folder)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda values: values["multimodal_io"].update(video={}), "multimodal_io.video"),
        (lambda values: values.update(job_type="other"), "job_type"),
        (lambda values: values["model"].update(model_choice="pipeline"), "model_choice"),
        (lambda values: values["model"].pop("model_hf_tag"), "model_hf_tag"),
    ],
)
def test_a_training_config_of_another_kind_is_named(folder, change, named):
    change_yaml(folder / TRAINING, change)
    with pytest.raises(WeightError, match=named):
        load(folder)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda values: values["audio"].pop("temperature"), "audio.temperature"),
        (lambda values: values["text"].update(cfg=2), "text.cfg"),
        (lambda values: values.update(enforce_modality=["video"]), "enforce_modality"),
        (lambda values: values["audio"].update(num_hypo=2), "audio.num_hypo"),
    ],
)
def test_a_way_to_decode_that_is_not_known_is_named(folder, change, named):
    change_yaml(folder / DECODING, change)
    with pytest.raises(WeightError, match=named):
        read_spec(folder)


def test_one_training_config_and_one_file_of_weights(folder):
    shutil.copy(folder / TRAINING, folder / "train_other.yaml")
    with pytest.raises(WeightError, match=r"train_other\.yaml"):
        load(folder)
    (folder / "train_other.yaml").unlink()
    shutil.copy(folder / WEIGHTS, folder / "base.pt")
    with pytest.raises(WeightError, match=r"base\.pt"):
        load(folder)


def test_of_the_hub_it_needs_weights_and_the_configs_beside_it(checkpoint):
    wanted = needs(checkpoint)
    assert wanted.weights == (WEIGHTS,)
    assert [(part.folder, part.repository, part.weights) for part in wanted.parts] == [
        ("Qwen3-tiny-Base", "Qwen/Qwen3-tiny-Base", ()),
        ("xcodec-tiny", "hf-audio/xcodec-tiny", ()),
    ]


@pytest.mark.parametrize("name", ["base.pt", "mp_rank_00_model_states.pt"])
def test_weights_of_the_other_published_names_are_read(folder, name):
    (folder / WEIGHTS).rename(folder / name)
    assert is_bagpiper(folder)
    load(folder)


@pytest.mark.parametrize(
    "key",
    [
        "lm_head.weight",
        "stream_emb.weight",
        "model.embed_tokens.weight",
        "model.layers.1.self_attn.q_norm.weight",
        "multimodal_io_dict.discrete_audio.codec_model.fc2.weight",
    ],
)
def test_missing_and_misshapen_weights_are_named(folder, key):
    change_weights(folder, lambda held: held.update({key: held[key][:1].clone()}))
    name = key.rpartition("codec_model.")[2]
    with pytest.raises(WeightError, match=r"\(1" if "self_attn" in key else name):
        load(folder)
    change_weights(folder, lambda held: held.pop(key))
    with pytest.raises(WeightError, match=name):
        load(folder)


def test_unknown_weights_are_named(folder):
    change_weights(folder, lambda held: held.update({"model.lora.weight": torch.zeros(2)}))
    with pytest.raises(WeightError, match=r"model\.lora\.weight"):
        load(folder)


def test_the_encoder_of_heard_audio_is_known_and_must_be_stated(folder):
    change_yaml(folder / TRAINING, lambda values: values["multimodal_io"].pop("continuous_audio"))
    with pytest.raises(WeightError, match="continuous_audio"):
        load(folder)


def test_a_vocabulary_of_another_size_is_named(folder):
    change_weights(folder, lambda held: held.update(vocab_weight=torch.zeros(3)))
    with pytest.raises(WeightError, match="vocab_weight"):
        load(folder)


# Requests.


def test_a_text_is_asked_for_in_words(model):
    plan = model.plan(PlanRequest(text="Hi.", options={"style": "slowly"}))
    column = plan.ids[:, 0].tolist()
    low = model.config.text_ids[0]
    assert column[0] == BOS
    assert column[-1] == ASSISTANT
    user = column.index(USER)
    assert column[user + 1] == TEXT_MARK
    assert column[-2] == EOS
    asked = model.tokenizer.decode([idx - low for idx in column[user + 2 : -2]])
    assert asked == "Say “Hi.” slowly."
    assert not plan.ids[:, 1:].any()


def test_a_scene_is_the_request_itself(model):
    plan = model.plan(PlanRequest(text="Rain on a roof.", options={"scene": True}))
    low = model.config.text_ids[0]
    column = plan.ids[:, 0].tolist()
    asked = column[column.index(USER) + 2 : -2]
    assert model.tokenizer.decode([idx - low for idx in asked]) == "Rain on a roof."


def test_only_the_general_checkpoint_has_a_system_s_words(model, folder):
    assert model.config.system == SYSTEM_TEXT
    plan = model.plan(PlanRequest(text="Hi."))
    assert plan.prefix_key is not None
    assert plan.prefix_rows == 4 + len(model.tokenizer.encode(SYSTEM_TEXT).ids)
    (folder / DECODING).rename(folder / "inference.yaml")
    speaking = load(folder).plan(PlanRequest(text="Hi."))
    assert torch.equal(speaking.ids[1:], plan.ids[plan.prefix_rows :])


def test_a_checkpoint_without_a_way_to_decode_has_the_published_one(folder):
    (folder / DECODING).unlink()
    config = load(folder).config
    assert (config.audio.guidance, config.audio.least_rows, config.text.temperature) == (3, 50, 0.6)
    assert config.order == ("text", "audio")


def test_options_reach_the_phases_that_they_are_meant_for(model):
    options = {"temperature": 0.5, "text_temperature": 0.25, "guidance": 1.0}
    plan = model.plan(PlanRequest(text="Hi.", options=options))
    assert plan.guidance_scale == 1
    assert plan.sampling["text.codebook0"].temperature == 0.25
    assert {plan.sampling[f"audio.codebook{n}"].temperature for n in range(8)} == {0.5}


@pytest.mark.parametrize(
    ("segments", "n_ordered", "n_most"), [("text,audio", 2, 2), ("audio", 1, 1), ("any", 0, 4)]
)
def test_the_order_of_messages_can_be_asked_for(model, segments, n_ordered, n_most):
    state = model.plan(PlanRequest(text="Hi.", options={"segments": segments})).state
    assert (int(state[N_ORDERED]), int(state[N_MOST])) == (n_ordered, n_most)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (PlanRequest(text=" "), "empty_text"),
        (PlanRequest(text="x" * 800), "prompt_too_long"),
        (PlanRequest(text="x", language="xx"), "unsupported_language"),
        (PlanRequest(text="x", options={"segments": "video"}), "invalid_value"),
        (PlanRequest(text="x", audio=torch.zeros(9).numpy(), audio_rate_hz=1), "invalid_reference"),
    ],
)
def test_what_cannot_be_asked_has_a_code(model, request_, code):
    with pytest.raises(PlanError) as caught:
        model.plan(request_)
    assert caught.value.code == code


# Messages.


def run_rows(machine: PhaseMachine, spec, order, rows: list[list[int]], n_most: int = 2):
    """Advance through drawn rows: fed rows, phases, frames, text ids, and where it ended."""
    state = start_state(spec, order, n_most=n_most).unsqueeze(0)
    fed, phases, frames, text = [], [], [], []
    for number, row in enumerate(rows):
        phases.append(int(state[0, 0]))
        step = machine.advance(state, torch.tensor([row]))
        fed.append(step.rows[0].tolist())
        if step.emits:
            frames.append(step.frames[0].tolist())
        if step.text_ids[0] >= 0:
            text.append(int(step.text_ids[0]))
        state = step.state
        if step.is_finished:
            return fed, phases, frames, text, number
    return fed, phases, frames, text, None


def lone(id_: int) -> list[int]:
    return [id_] + [BLANK] * (N_COLUMNS - 1)


def delayed_rows(config, codes: Tensor, *, stray: int = 7) -> list[list[int]]:
    """Codes `(T, 8)` a row later with each column; a stray code stands where a blank belongs."""
    n_frames = len(codes)
    rows = []
    for row in range(n_frames + N_COLUMNS):
        drawn = []
        for k, (low, _) in enumerate(config.code_ids):
            frame = row - k
            drawn.append(low + 1 + (int(codes[frame, k]) if 0 <= frame < n_frames else stray))
        rows.append(drawn)
    rows[n_frames][0] = config.code_ids[0][0]
    return rows


def codes_of(n_frames: int) -> Tensor:
    generator = torch.Generator().manual_seed(n_frames)
    return torch.randint(0, N_CODES, (n_frames, N_COLUMNS), generator=generator)


@pytest.mark.parametrize("n_frames", [1, 2, 7, 8, 50])
def test_delayed_codes_come_back_as_frames_and_what_is_no_code_is_blank(model, n_frames):
    codes, config = codes_of(n_frames), model.config
    rows = [lone(AUDIO_MARK), *delayed_rows(config, codes)]
    fed, _, frames, _, end = run_rows(model.phases, model.spec, ("audio",), rows)
    assert frames == codes.tolist()
    assert end == n_frames + N_COLUMNS - 1
    for row, ids in enumerate(fed[1:]):
        for k, idx in enumerate(ids):
            low = config.code_ids[k][0]
            in_speech = 0 <= row - k < n_frames
            assert idx == (low + 1 + int(codes[row - k, k]) if in_speech else low)


@pytest.mark.parametrize("n_frames", [1, 2, 7, 8, 50])
def test_the_reference_s_way_gives_the_same_frames_of_what_keeps_the_pattern(checkpoint, n_frames):
    model = load(checkpoint, forces_delays=False)
    codes, config = codes_of(n_frames), model.config
    drawn = delayed_rows(config, codes)[:-1]
    rows = [lone(AUDIO_MARK), *drawn, [EOS, *drawn[0][1:]]]
    fed, _, frames, _, end = run_rows(model.phases, model.spec, ("audio",), rows)
    assert frames == codes.tolist()
    assert end == len(rows) - 1
    assert fed[1:-1] == drawn
    assert fed[-1] == lone(EOS), "what follows does not hear codes that are no frame's"


@pytest.mark.parametrize("mark", [EOS, EOT])
def test_an_end_without_a_drain_loses_nothing(model, mark):
    """The reference drops the seven frames under way."""
    codes, config = codes_of(20), model.config
    rows = [lone(AUDIO_MARK), *delayed_rows(config, codes)]
    rows[21][0] = mark
    fed, _, frames, _, end = run_rows(model.phases, model.spec, ("audio",), rows)
    assert frames == codes.tolist()
    assert fed[21][0] == config.code_ids[0][0]
    assert end == 20 + N_COLUMNS - 1


@pytest.mark.parametrize("forces_delays", [True, False])
def test_text_is_followed_by_bridge_rows_and_then_by_speech(checkpoint, forces_delays):
    model = load(checkpoint, forces_delays=forces_delays)
    low, codes = model.config.text_ids[0], codes_of(5)
    rows = [
        lone(TEXT_MARK),
        *(lone(low + n) for n in (9, 8, 7)),
        lone(EOT),
        lone(ASSISTANT),
        lone(AUDIO_MARK),
        *delayed_rows(model.config, codes)[:12],
        lone(EOS),
    ]
    fed, phases, frames, text, end = run_rows(model.phases, model.spec, ("text", "audio"), rows)
    assert text == [low + 9, low + 8, low + 7]
    assert fed[:7] == rows[:7]
    assert phases[:8] == [CHOICE, TEXT, TEXT, TEXT, TEXT, TURN, CHOICE, AUDIO]
    assert frames == codes.tolist()
    assert end == (18 if forces_delays else 19)


def test_what_is_drawn_in_a_drain_says_nothing(model):
    """An end there is no promise of another message: nothing that is drawn counts any more."""
    codes = codes_of(9)
    rows = [lone(AUDIO_MARK), *delayed_rows(model.config, codes)]
    for row in rows[11:]:
        row[0] = EOT
    *_, end = run_rows(model.phases, model.spec, (), rows, n_most=4)
    assert end == 9 + N_COLUMNS - 1


def test_text_that_does_not_end_is_ended_and_the_next_message_begins(model):
    n_most, low = model.config.text.most_rows, model.config.text_ids[0]
    rows = [lone(TEXT_MARK), *[lone(low + 1)] * n_most, lone(ASSISTANT), lone(AUDIO_MARK)]
    _, phases, _, text, end = run_rows(model.phases, model.spec, ("text", "audio"), rows)
    assert len(text) == n_most
    assert phases[-2:] == [TURN, CHOICE]
    assert end is None


def test_speech_that_does_not_end_is_drained_at_its_limit(model):
    n_rows = model.config.audio.most_rows
    codes = codes_of(n_rows)
    rows = [lone(AUDIO_MARK), *delayed_rows(model.config, codes)]
    fed, _, frames, _, end = run_rows(model.phases, model.spec, ("audio",), rows)
    n_frames = n_rows - N_COLUMNS
    assert frames == codes[:n_frames].tolist()
    assert end == n_rows - 1
    assert fed[end] == [low for low, _ in model.config.code_ids[:-1]] + [fed[end][-1]]


def test_a_message_after_speech_begins_when_the_last_frame_has_come(model):
    codes, config = codes_of(9), model.config
    rows = [lone(AUDIO_MARK), *delayed_rows(config, codes), lone(ASSISTANT), lone(TEXT_MARK)]
    fed, phases, frames, _, end = run_rows(model.phases, model.spec, ("audio", "text"), rows)
    assert frames == codes.tolist()
    assert end is None
    assert fed[-3] == lone(EOT)
    assert phases[-2:] == [TURN, CHOICE]


@pytest.mark.parametrize(
    ("order", "ids", "end"), [((), [EOS], 2), ((), [EOT], None), (("text",), [EOT], 2)]
)
def test_without_an_order_a_message_says_whether_another_follows(model, order, ids, end):
    rows = [lone(TEXT_MARK), lone(300), *(lone(idx) for idx in ids)]
    n_most = len(order) or 4
    assert run_rows(model.phases, model.spec, order, rows, n_most)[-1] == end


# Ids that may be drawn.


def allowed(machine: PhaseMachine, spec, phase: int, row: int, order=("text", "audio")) -> set[int]:
    """Ids of column 0 that `constrain` leaves."""
    state = start_state(spec, order, n_most=2).unsqueeze(0)
    state[0, 0], state[0, ROW] = phase, row
    low, high = spec.columns[0].ids
    left = machine.constrain(state, torch.zeros(1, high - low))
    return {low + idx for idx in left[0].isfinite().nonzero().flatten().tolist()}


def test_the_kind_of_an_ordered_message_is_given(model):
    spec, marks = model.spec, {TEXT_MARK, AUDIO_MARK}
    assert allowed(model.phases, spec, CHOICE, 0) & marks == {TEXT_MARK}
    assert allowed(model.phases, spec, CHOICE, 0, ("audio",)) & marks == {AUDIO_MARK}
    assert allowed(model.phases, spec, CHOICE, 0, ()) & marks == marks


def test_messages_do_not_end_before_their_time(model):
    spec, ends = model.spec, {EOS, EOT}
    blank, config = model.config.code_ids[0][0], model.config
    least = config.text.least_rows
    assert allowed(model.phases, spec, TEXT, least - 1) & ends == set()
    assert allowed(model.phases, spec, TEXT, least) & ends == ends
    least = config.audio.least_rows
    assert allowed(model.phases, spec, AUDIO, least - 1) & ends == set()
    assert allowed(model.phases, spec, AUDIO, least) & ends == ends
    first_drain = least - (N_COLUMNS - 1)
    assert blank not in allowed(model.phases, spec, AUDIO, first_drain - 1)
    assert blank in allowed(model.phases, spec, AUDIO, first_drain)


def test_only_the_first_column_may_be_blank_when_the_pattern_is_kept(model, checkpoint):
    low = model.config.code_ids[1][0]
    assert model.spec.phases[AUDIO].columns[1].allowed == ((low + 1, low + 65),)
    plain = load(checkpoint, forces_delays=False).spec
    assert plain.phases[AUDIO].columns[1].allowed == ((low, low + 65),)


# Streams.


def test_text_and_speech_of_a_stream_are_both_given(model):
    plan = model.plan(PlanRequest(text="Hi."))
    engine = Engine(model)
    stream_id = engine.open(replace(plan, max_frames=30), seed=3)
    engine.run()
    assert engine.text(stream_id)
    finished = engine.finished(stream_id)
    assert finished.n_frames == 30
    assert len(engine.pcm(stream_id)) == 30 * model.spec.frame.samples_per_frame
    engine.check_is_empty()


def test_the_system_s_words_are_run_once(model):
    engine = Engine(model)
    plans = [model.plan(PlanRequest(text=text, max_seconds=0.1)) for text in ("Hi.", "Ho.")]
    n_rows = []
    for plan in plans:
        n_before = engine.loop.metrics.prefill_rows.sum
        engine.speak([replace(plan, guidance_scale=1.0)], seeds=[1])
        n_rows.append(engine.loop.metrics.prefill_rows.sum - n_before)
    n_pages = plans[0].prefix_rows // 16
    assert n_rows == [len(plans[0].ids), len(plans[1].ids) - 16 * n_pages]


def test_a_new_stream_knows_of_no_end(model):
    state = model.plan(PlanRequest(text="Hi.")).state
    assert int(state[END]) == NEVER
    assert len(state) == model.spec.state_size
