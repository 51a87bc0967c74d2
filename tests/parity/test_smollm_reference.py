"""Our Llama against transformers': on random weights, and on the real ones."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from models.smollm.config import SMOLLM2_135M
from models.smollm.model import SmolModel, load
from models.smollm.prompt import prompt_ids
from models.smollm.weights import PACKAGE, weights_folder
from models.spec import Message, PlanRequest
from tests.engine.harness import CONFIG as ENGINE_CONFIG
from tests.engine.harness import Engine
from tests.models.smollm.tiny import CONFIG, gguf_tensors, reference, tiny_model

pytest.importorskip("transformers", reason="the reference is in transformers, not installed")
pytest.importorskip("gguf", reason="the gguf library is not installed")

IS_INSTALLED = importlib.util.find_spec(PACKAGE) is not None
SYSTEM = Message(role="system", text="You are a helpful voice assistant. Give short answers.")
QUESTIONS = ("What is the capital of France?", "How many days are in a week?")


def real_weights(test: Callable[[], None]) -> Callable[[], None]:
    """Mark a test that reads the real weights; skip it, saying why, where there are none."""
    reason = f"the package {PACKAGE} is not installed: no SmolLM2 weights"
    return pytest.mark.weights(pytest.mark.skipif(not IS_INSTALLED, reason=reason)(test))


class PlainAttention:
    """Keys and values of one sequence, joined as they come."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, layer_idx: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if layer_idx in self._kept:
            before = self._kept[layer_idx]
            k, v = torch.cat([before[0], k]), torch.cat([before[1], v])
        self._kept[layer_idx] = (k, v)
        n_rows, n_all = len(q), len(k)
        mask = torch.ones(n_rows, n_all, dtype=torch.bool).tril(n_all - n_rows)
        q, k, v = (part.transpose(0, 1).unsqueeze(0) for part in (q, k, v))
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return out[0].transpose(0, 1)


@torch.inference_mode()
def our_logits(model: SmolModel, ids: list[int]) -> Tensor:
    rows = torch.tensor(ids).unsqueeze(1)
    x = model.embed(rows, torch.full((len(ids),), -1))
    return model.heads(model.backbone(x, torch.arange(len(ids)), PlainAttention()))[0]


@torch.inference_mode()
def their_logits(model: Any, ids: list[int]) -> Tensor:
    logits: Tensor = model(torch.tensor([ids])).logits[0]
    return logits


def random_ids(n_ids: int, n_most: int) -> list[int]:
    generator = torch.Generator().manual_seed(3)
    ids: list[int] = torch.randint(17, n_most, (n_ids,), generator=generator).tolist()
    return ids


def test_logits_on_random_weights_are_those_of_transformers():
    ids = random_ids(40, CONFIG.n_ids)
    theirs = their_logits(reference(), ids)
    assert theirs.std() > 1, "logits that say nothing would agree by chance"
    # float32, sums in another order.
    torch.testing.assert_close(our_logits(tiny_model(), ids), theirs, rtol=1e-4, atol=1e-4)


def test_int4_gives_the_logits_of_the_quantized_weights():
    ids = random_ids(40, CONFIG.n_ids)
    exact = our_logits(tiny_model("float32", "q4_1"), ids)
    rounded = our_logits(tiny_model("int4", "q4_1"), ids)
    # bfloat16 inputs and scales, three layers deep: under 2 % of the spread of the logits.
    error = (rounded - exact).square().mean().sqrt() / exact.std()
    assert error < 0.02
    assert (rounded.argmax(1) == exact.argmax(1)).float().mean() > 0.9


def test_the_rows_of_queries_and_keys_are_back_in_their_order():
    """Forgetting it changes nothing at position 0, so it is easily missed."""
    wrong = gguf_tensors()
    ids = random_ids(12, CONFIG.n_ids)
    theirs = their_logits(reference(), ids)
    ours = our_logits(tiny_model(), ids)
    assert not torch.equal(
        wrong["blk.0.attn_q.weight"].data,
        reference().state_dict()["model.layers.0.self_attn.q_proj.weight"],
    )
    torch.testing.assert_close(ours[-1], theirs[-1], rtol=1e-4, atol=1e-4)


def test_a_greedy_reply_of_the_engine_is_that_of_transformers():
    model = tiny_model()
    plan = model.plan(PlanRequest(text="Hello", options={"max_tokens": 20}))
    ids = plan.ids[:, 0].tolist()
    expected = _their_greedy(reference(), ids, 20)
    engine = Engine(model)
    stream_id = engine.open(plan)
    engine.run()
    assert engine.text(stream_id) == model.detokenize_text(expected)


def _their_greedy(model: Any, ids: list[int], n_most: int) -> list[int]:
    """The likeliest ids that a reply may hold, a whole forward pass each: no cache to be wrong."""
    said: list[int] = []
    while len(said) < n_most:
        logits = their_logits(model, [*ids, *said])[-1].clone()
        logits[1] = logits[3:17] = -torch.inf
        next_id = int(logits.argmax())
        if next_id in (0, 2):
            break
        said.append(next_id)
    return said


# The real weights.


@cache
def real(precision: str) -> SmolModel:
    return load(precision=precision)  # type: ignore[arg-type]  # one of the two literals


@cache
def real_reference() -> Any:
    """The model of transformers, the weights read and put in order as transformers does."""
    from gguf import GGUFReader, quants
    from transformers import LlamaConfig, LlamaForCausalLM

    from models.smollm.weights import FILE

    shape = SMOLLM2_135M
    config = LlamaConfig(
        vocab_size=shape.n_ids,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.n_layers,
        num_attention_heads=shape.n_query_heads,
        num_key_value_heads=shape.n_kv_heads,
        max_position_embeddings=shape.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": shape.theta},
        rms_norm_eps=shape.eps,
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.to_empty(device="cpu")
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    reader = GGUFReader(weights_folder() / FILE)
    arrays = {t.name: quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    state = {_their_name(n): _their_rows(n, torch.tensor(a)) for n, a in arrays.items()}
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    return model.eval()


def _their_name(name: str) -> str:
    for ours, theirs in (
        ("token_embd", "model.embed_tokens"),
        ("output_norm", "model.norm"),
        ("blk.", "model.layers."),
        ("attn_norm", "input_layernorm"),
        ("ffn_norm", "post_attention_layernorm"),
        ("attn_output", "self_attn.o_proj"),
        ("attn_q", "self_attn.q_proj"),
        ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"),
        ("ffn_gate", "mlp.gate_proj"),
        ("ffn_up", "mlp.up_proj"),
        ("ffn_down", "mlp.down_proj"),
    ):
        name = name.replace(ours, theirs)
    return name


def _their_rows(name: str, weight: Tensor) -> Tensor:
    """Source: transformers, modeling_gguf_pytorch_utils.py, `LlamaTensorProcessor`."""
    if not ("attn_q" in name or "attn_k" in name):
        return weight
    n_heads = SMOLLM2_135M.n_query_heads if "attn_q" in name else SMOLLM2_135M.n_kv_heads
    n_half = weight.shape[0] // n_heads // 2
    return weight.view(n_heads, n_half, 2, -1).swapaxes(2, 1).reshape(weight.shape)


@real_weights
def test_the_shape_is_what_the_file_says():
    from gguf import GGUFReader

    from models.smollm.weights import FILE

    reader = GGUFReader(weights_folder() / FILE)

    def read(name: str) -> Any:
        field = reader.get_field(name)
        assert field is not None, name
        return field.contents()

    shape = SMOLLM2_135M
    assert read("general.architecture") == "llama"
    assert read("llama.embedding_length") == shape.hidden
    assert read("llama.block_count") == shape.n_layers
    assert read("llama.attention.head_count") == shape.n_query_heads
    assert read("llama.attention.head_count_kv") == shape.n_kv_heads
    assert read("llama.rope.dimension_count") == shape.head_dim
    assert read("llama.feed_forward_length") == shape.inner
    assert read("llama.vocab_size") == shape.n_ids
    assert read("llama.rope.freq_base") == shape.theta
    assert read("llama.attention.layer_norm_rms_epsilon") == pytest.approx(shape.eps)
    assert read("llama.context_length") >= shape.max_positions
    assert read("tokenizer.ggml.pre") == "smollm"
    assert read("tokenizer.ggml.tokens")[:3] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@real_weights
@pytest.mark.slow
def test_logits_on_the_real_weights_are_those_of_transformers():
    model = real("float32")
    for question in QUESTIONS:
        ids = prompt_ids([SYSTEM, Message(role="user", text=question)], model.tokenizer)
        # float32 over 30 layers, sums in another order; logits span about 40.
        torch.testing.assert_close(
            our_logits(model, ids), their_logits(real_reference(), ids), rtol=1e-3, atol=5e-3
        )


@real_weights
@pytest.mark.slow
def test_greedy_replies_on_the_real_weights_are_those_of_transformers():
    model = real("float32")
    engine = Engine(model, ENGINE_CONFIG)
    plans = [
        model.plan(PlanRequest(text=question, messages=(SYSTEM,), options={"max_tokens": 12}))
        for question in QUESTIONS
    ]
    stream_ids = [engine.open(plan) for plan in plans]
    engine.run()
    for plan, stream_id in zip(plans, stream_ids, strict=True):
        expected = _their_greedy(real_reference(), plan.ids[:, 0].tolist(), 12)
        assert engine.text(stream_id) == model.detokenize_text(expected)
    assert engine.text(stream_ids[0]) == "The capital of France is Paris."
    engine.check_is_empty()


@real_weights
@pytest.mark.slow
def test_int4_hardly_changes_what_the_real_model_expects():
    """Measured over 22 questions: 98.7 % of the likeliest ids and a divergence of 0.0008."""
    exact, rounded = real("float32"), real("int4")
    prompt = prompt_ids([SYSTEM, Message(role="user", text=QUESTIONS[1])], exact.tokenizer)
    said = exact.tokenizer.encode("A week is 7 days. It starts on a Monday and ends on a Sunday.")
    first = our_logits(exact, [*prompt, *said])[len(prompt) - 1 :].log_softmax(1)
    second = our_logits(rounded, [*prompt, *said])[len(prompt) - 1 :].log_softmax(1)
    divergence = (first.exp() * (first - second)).sum(1).mean()
    # An error in the packing would cost whole nats.
    assert divergence < 0.01
    # One near tie of the 19 may turn.
    assert (first.argmax(1) != second.argmax(1)).sum() <= 1


@real_weights
def test_the_real_tokenizer_cuts_as_the_published_one():
    """Source of the ids: SmolLM2's own tokenizer.json; digits stand alone, words keep spaces."""
    tokenizer = real("int4").tokenizer
    assert tokenizer.encode("user\nHello") == [4093, 198, 19556]
    assert tokenizer.encode("1234") == [33, 34, 35, 36]
    text = "Don't pay $18.60 on 3/14 — naïve 日本語 😀!"
    assert tokenizer.decode(tokenizer.encode(text)) == text
