"""The streaming detokenizer as the engine runs it: every pattern of calls, batches, recorded calls.

Tiny random weights. Tolerance 1e-5 on PCM of up to 0.99: 4e-6 was seen, of sums in another order; a
vocoder that runs across the borders of chunks differs by 3e-5, keys that are rounded only once they
are remembered by more.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from engine.chunks import ChunkWork
from engine.codec_runner import CodecRunner
from engine.device_streams import make_streams
from engine.graphs import Graphs
from engine.slot_state import SlotState
from engine.types import StreamId
from models.base import PromptPlan
from models.codecs.causal import n_bytes
from models.codecs.conformer import ConformerConfig
from models.codecs.flow import FlowConfig
from models.codecs.flow_memory import KeptFrames
from models.codecs.hift import Hift, HiftConfig
from models.codecs.speech_flow import SpeechFlow, SpeechFlowConfig
from models.codecs.token2wav import Token2Wav, Token2WavConfig
from models.codecs.unet import Unet, UnetConfig
from models.layers.linear import pack
from models.spec import CodecSpec, FrameSpec
from models.toy import streamed
from tests.engine.recorded_graphs import record

CPU = torch.device("cpu")
N_CODES, N_MELS, SPEAKER_DIM = 40, 8, 6
CHUNK = 10
FRAME = FrameSpec(n_codebooks=1, frame_rate_hz=25.0, sample_rate_hz=24_000, samples_per_frame=960)
TOLERANCE = 1e-5
HIFT = HiftConfig(
    sample_rate_hz=24_000,
    n_mels=N_MELS,
    n_channels=16,
    strides=(8, 5, 3),
    kernels=(16, 11, 7),
    n_fft=16,
    n_hop=4,
    residual_kernels=(11,),
    residual_dilations=((1, 3, 5),),
    source_kernels=(7, 7, 11),
    source_dilations=((1,),) * 3,
    n_f0_channels=8,
    n_harmonics=8,
    sine_gain=0.1,
    noise_gain=0.003,
    voiced_hz=10.0,
    is_interpolated=True,
    slope=0.1,
    limit=0.99,
)


def tiny(*, chunk_tokens: int = CHUNK, n_steps: int = 2) -> Token2Wav:
    torch.manual_seed(8)
    unet = UnetConfig(n_mels=N_MELS, n_channels=16, n_layers=1, n_middle=1, n_heads=2, head_dim=8)
    config = SpeechFlowConfig(
        n_tokens=N_CODES,
        speaker_dim=SPEAKER_DIM,
        encoder=ConformerConfig(
            n_in=16,
            size=16,
            n_heads=2,
            inner=32,
            n_layers=1,
            n_up_layers=1,
            lookahead=3,
            chunk_tokens=chunk_tokens,
            kept_tokens=3 * chunk_tokens,
        ),
        flow=FlowConfig(
            n_mels=N_MELS,
            n_steps=n_steps,
            guidance=0.7,
            chunk_frames=2 * chunk_tokens,
            kept=KeptFrames(first=20, last=4 * chunk_tokens),
        ),
    )
    hift = Hift(HIFT)
    with torch.no_grad():
        hift.f0_predictor.classifier.bias.fill_(150.0)
        # A vocoder that hears its mel frames, far ones too.
        hift.conv_pre.weight.mul_(4.0)
        for block in hift.resblocks:
            for conv in (*block.convs1, *block.convs2):
                conv.weight.mul_(1.7)
    flow = SpeechFlow(config, Unet(unet))
    return Token2Wav(flow, hift, Token2WavConfig(first_tokens=4)).requires_grad_(False)


@pytest.fixture(scope="module")
def model() -> Token2Wav:
    return tiny()


def tokens_of(n_tokens: int, seed: int) -> Tensor:
    return torch.randint(0, N_CODES, (n_tokens,), generator=torch.Generator().manual_seed(seed))


def voice(model: Token2Wav, n_prompt: int, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(100 + seed)
    mel = torch.randn(N_MELS, 2 * n_prompt, generator=generator)
    return model.seed(tokens_of(n_prompt, seed), mel, torch.randn(SPEAKER_DIM, generator=generator))


def calls(spec: CodecSpec, n_tokens: int, pick: random.Random) -> Iterator[tuple[int, int, bool]]:
    """Of each call that the ramp may make: its size, how many tokens it brings, is it the last."""
    n_left, idx = n_tokens, 0
    while True:
        sizes = spec.sizes(idx)
        last = [size for size in sizes if size >= n_left + spec.last_room_frames]
        size = pick.choice([*[one for one in sizes if one <= n_left], *last])
        if size in last:
            yield size, n_left, True
            return
        yield size, size, False
        n_left, idx = n_left - size, idx + 1


class Player:
    """A stream and the sound that it had so far."""

    def __init__(self, model: Token2Wav, n_prompt: int, n_tokens: int, seed: int) -> None:
        self.seed = voice(model, n_prompt, seed)
        self.tokens = tokens_of(n_tokens, 50 + seed)
        self.works: list[ChunkWork] = []
        first = 0
        for idx, (size, n_valid, is_last) in enumerate(
            calls(model.spec, n_tokens, random.Random(seed))
        ):
            self.works.append(
                ChunkWork(
                    stream_id=StreamId(seed),
                    chunk_idx=idx,
                    first_frame=first,
                    n_frames=size,
                    n_valid=n_valid,
                    n_context=0,
                    is_first=idx == 0,
                    is_last=is_last,
                    due_s=0.0,
                )
            )
            first += n_valid
        self.pcm: list[Tensor] = []

    @property
    def sound(self) -> Tensor:
        return torch.cat(self.pcm)


def play(
    model: Token2Wav, players: list[Player], *, seed: int = 0, is_recorded: bool = False
) -> None:
    """All streams at once, each at its own pace, in calls of such as have the same size."""
    backbone = replace(streamed.SPEC.backbone, max_positions=8192)
    spec = replace(streamed.SPEC, codec=model.spec, frame=FRAME, backbone=backbone)
    named = SimpleNamespace(spec=spec, decode=model.decode)
    n_slots = len(players)
    slots = SlotState(spec, n_slots, CPU)
    graphs = Graphs(record) if is_recorded else None
    runner = CodecRunner(named, slots, n_slots, CPU, make_streams(CPU, CPU, time.monotonic), graphs)
    with torch.inference_mode():
        runner.capture()
        for slot, player in enumerate(players):
            plan = PromptPlan(
                ids=torch.zeros(1, spec.n_columns, dtype=torch.int64),
                state=torch.zeros(spec.state_size, dtype=torch.int64),
                max_frames=1,
                codec_state=player.seed,
            )
            slots.open_slot(slot, plan)
            slots.frames[slot, : len(player.tokens), 0] = player.tokens.int()
        pick = random.Random(seed)
        waiting = {slot: list(player.works) for slot, player in enumerate(players)}
        while waiting:
            size = waiting[pick.choice(sorted(waiting))][0].n_frames
            chosen = [slot for slot in sorted(waiting) if waiting[slot][0].n_frames == size]
            chosen = pick.sample(chosen, pick.randint(1, len(chosen)))
            audio = runner.decode(chosen, [waiting[slot].pop(0) for slot in chosen])
            assert audio.is_finite.all()
            for slot, pcm, n_samples in zip(chosen, audio.pcm, audio.n_samples, strict=True):
                players[slot].pcm.append(pcm[:n_samples].clone())
            waiting = {slot: works for slot, works in waiting.items() if works}


MIX = ((37, 61), (16, 1), (3, 44), (0, 23), (27, 7), (6, 17))
"""Tokens of a prompt, and of the stream: prompts longer and shorter than what waits for a call."""


def test_the_vocoder_does_not_see_all_that_it_could(model):
    """Else what follows would not show that little look-ahead sounds the same in all patterns."""
    assert model.hift.ahead == 12 < model.hift.config.reach


def test_streams_of_a_batch_sound_as_each_alone(model):
    """Each with its own voice, at its own time, in sizes of its own; and as its whole pattern."""
    together = [Player(model, *lengths, seed) for seed, lengths in enumerate(MIX)]
    play(model, together)
    for seed, lengths in enumerate(MIX):
        alone = Player(model, *lengths, seed)
        play(model, [alone])
        assert len(alone.sound) == lengths[1] * model.samples_per_frame
        assert alone.sound.std() > 0.01
        torch.testing.assert_close(together[seed].sound, alone.sound, atol=TOLERANCE, rtol=0)


def test_recorded_calls_sound_the_same(model):
    """Shapes are fixed, the host reads nothing, and padding leaves nothing behind."""
    players, recorded = (
        [Player(model, *lengths, seed) for seed, lengths in enumerate(MIX[:4])] for _ in range(2)
    )
    play(model, players)
    play(model, recorded, is_recorded=True)
    for one, other in zip(players, recorded, strict=True):
        torch.testing.assert_close(other.sound, one.sound, atol=TOLERANCE, rtol=0)


def test_packed_weights_sound_the_same(model):
    """A CPU multiplies by the taps of the convolutions as by matrices."""
    packed = tiny()
    assert pack(packed, smallest=0) > 20
    sounds = []
    for one in (model, packed):
        player = Player(one, 27, 40, 3)
        play(one, [player])
        sounds.append(player.sound)
    torch.testing.assert_close(sounds[0], sounds[1], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("n_tokens", [1, 3, 4, 5, 7, 8, 14, 20, 21, 24, 35])
@pytest.mark.parametrize("n_prompt", [0, 26])
def test_every_pattern_of_calls_sounds_the_same(model, n_tokens, n_prompt):
    """Of one, of two chunks, in any order: also where a last call joins one with too much room."""
    seed, tokens = voice(model, n_prompt), tokens_of(n_tokens, 9)
    sounds = {}
    for number in range(12):
        player = Player(model, 0, n_tokens, number)
        player.seed, player.tokens = seed, tokens
        key = tuple((work.n_frames, work.n_valid) for work in player.works)
        if key not in sounds:
            play(model, [player])
            sounds[key] = player.sound
    first, *others = sounds.values()
    assert len(first) == n_tokens * model.samples_per_frame
    for other in others:
        torch.testing.assert_close(other, first, atol=TOLERANCE, rtol=0)


def test_five_minutes_have_as_many_samples_as_tokens():
    """Noise is a table of 300 s, after which it begins again: the reference stops there."""
    model = tiny(chunk_tokens=250, n_steps=1)
    player = Player(model, 5, 7501, 1)
    play(model, [player])
    assert len(player.sound) == 7501 * model.samples_per_frame


@pytest.mark.parametrize("n_prompt", [0, 1, 6, 7, 15, 16, 17, 30])
def test_a_prompt_of_any_length_leaves_its_end_on_the_grid(model, n_prompt):
    """What is cut off at its beginning leaves no trace."""
    seed = voice(model, n_prompt)
    n_kept = n_prompt if n_prompt < 6 else n_prompt - (n_prompt - 6) % CHUNK
    generator = torch.Generator().manual_seed(100)
    mel = torch.randn(N_MELS, 2 * n_prompt, generator=generator)
    speaker = torch.randn(SPEAKER_DIM, generator=generator)
    cut = n_prompt - n_kept
    shorter = model.seed(tokens_of(n_prompt, 0)[cut:], mel[:, 2 * cut :], speaker)
    assert seed.keys() == shorter.keys() <= {one.name for one in model.spec.state}
    for name, tensor in seed.items():
        assert torch.equal(tensor, shorter[name]), name
    shapes = {one.name: one.shape for one in model.spec.state}
    assert all(tensor.shape == shapes[name] for name, tensor in seed.items())


def test_the_voice_is_heard(model):
    sounds = []
    for seed in (1, 2):
        player = Player(model, 26, 20, 5)
        player.seed = voice(model, 26, seed)
        play(model, [player])
        sounds.append(player.sound)
    assert (sounds[0] - sounds[1]).abs().max() > 0.05


def published(**remembered: str) -> Token2Wav:
    """CosyVoice 2's shape, without weights."""
    with torch.device("meta"):
        unet = UnetConfig(
            n_mels=80,
            n_channels=256,
            n_layers=4,
            n_middle=12,
            n_heads=8,
            head_dim=64,
            **remembered,  # type: ignore[arg-type] # of few kinds
        )
        config = SpeechFlowConfig(
            n_tokens=6561,
            speaker_dim=192,
            encoder=ConformerConfig(
                n_in=512,
                size=512,
                n_heads=8,
                inner=2048,
                n_layers=6,
                n_up_layers=4,
                lookahead=3,
                chunk_tokens=25,
                kept_tokens=100,
            ),
            flow=FlowConfig(
                n_mels=80,
                n_steps=10,
                guidance=0.7,
                chunk_frames=50,
                kept=KeptFrames(first=100, last=100),
            ),
        )
        return Token2Wav(SpeechFlow(config, Unet(unet)), Hift(replace(HIFT, n_mels=80)))


@pytest.mark.parametrize(("remembers", "n_mib"), [("inputs", 117), ("keys", 445)])
def test_state_of_the_published_size(remembers, n_mib):
    """2 s of the prompt and 2 s before a chunk; inputs are a quarter of keys and values."""
    model = published(remembers=remembers)
    assert model.spec.sizes(0) == (15, 40)
    assert model.spec.sizes(1) == (25, 50)
    assert model.spec.lookahead_frames == 9
    assert n_mib - 2 < n_bytes(model.spec.state) / 2**20 < n_mib
