"""Every architecture there is: equal to its reference, and position-independent caching with every arm.

They are found as the engine finds them. A new file is tested by being there; without `TINY` it fails here.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import KINDS, ONE_LAYER, REFUSED, RING_2_5, VARIANTS, Asker, ids_of, logits_in_pieces
from checkpoints import reference_class, text_config, write_checkpoint
from torch import Tensor, nn

from hypic.arms import ARMS
from hypic.batch import DecodeBatch, PrefillBatch
from hypic.engine.prefill import Prefill
from hypic.errors import UnsupportedModelError
from hypic.layers.causal_lm import CausalLM, Positions
from hypic.layers.decoder import DecoderLayer
from hypic.layers.gated_delta_net import DeltaNetShape, GatedDeltaNet
from hypic.layers.mlp import Experts
from hypic.layers.rotary import RotaryPositions
from hypic.models.load import architectures, load_model
from hypic.protocol import decode_entry, encode_entry
from hypic.sequence import Active, Sequence, SequenceCache, Trace

MakeAsker = Callable[..., Asker]
REUSING = [name for name in ARMS if ARMS[name].reuse_segments]
CASES = [(kind, {}) for kind in KINDS] + [(kind, variant) for kind in KINDS for variant in VARIANTS.get(kind, [])]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices are tiny here: on a busy machine a second thread makes this several times slower."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


@pytest.fixture(scope="module")
def asker(tmp_path_factory: pytest.TempPathFactory) -> MakeAsker:
    """An engine by architecture, with fields of the config set otherwise; made once where they are not."""

    def make(kind: str, **config: Any) -> Asker:
        return Asker(write_checkpoint(tmp_path_factory.mktemp(kind) / kind, kind, **config))

    plain = cache(make)
    return lambda kind, **config: make(kind, **config) if config else plain(kind)


def load_reference(kind: str, path: Path) -> Any:
    return reference_class(kind).from_pretrained(path, dtype=torch.float32).eval()


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_says_what_it_serves(kind: str) -> None:
    module = architectures()[kind]
    assert module.MODEL_TYPES[0] == kind, "the file is named after the type that it serves"
    assert module.TINY, "tests and evaluation need the smallest config of each architecture"


@pytest.mark.parametrize(("kind", "variant"), CASES)
@torch.inference_mode()
def test_logits_are_those_of_the_reference(tmp_path: Path, kind: str, variant: dict[str, Any]) -> None:
    path = write_checkpoint(tmp_path / kind, kind, **variant)
    model = load_model(path)
    reference = reference_class(kind, model.config).from_pretrained(path, dtype=torch.float32).eval()
    ids = torch.randint(0, 256, (130,), generator=torch.Generator().manual_seed(0))
    expected = reference(ids[None]).logits[0]
    assert expected.std() > 0.1, "logits that hardly vary would agree with anything"
    for tokens, cuts in [(130, (130,)), (130, (63, 2, 40)), (9, (1,))]:
        assert gap(logits_in_pieces(model, ids[:tokens], cuts), expected[:tokens]) <= 1e-4, cuts


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_tied_embeddings(tmp_path: Path, kind: str) -> None:
    """Tied where the reference ties; some have no tied form, whatever the config says."""
    path = write_checkpoint(tmp_path / kind, kind, tie=True)
    assert load_model(path).tied == bool(reference_class(kind)._tied_weights_keys)
    ids = torch.arange(65)
    assert gap(logits_in_pieces(load_model(path), ids, (65,)), load_reference(kind, path)(ids[None]).logits[0]) <= 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_the_layout_of_transformers_loads_too(asker: MakeAsker, tmp_path: Path, kind: str) -> None:
    """Checkpoints come as published and as transformers holds them in memory; both are the same model."""
    ask = asker(kind)
    load_reference(kind, ask.path).save_pretrained(tmp_path / kind, save_original_format=False)
    for (name, one), (_, other) in zip(
        load_model(tmp_path / kind).named_parameters(), ask.engine.model.named_parameters(), strict=True
    ):
        assert torch.equal(one, other), name


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_keeps_states_and_decays_in_float32(asker: MakeAsker, kind: str) -> None:
    """Fault 27: a state that silently loses half its bits loses answers."""
    ask = asker(kind)
    rough, ids = load_model(ask.path, torch.bfloat16), ids_of(ask.prompt(1))
    cache = SequenceCache.empty(rough.cache_spec(), len(ids))
    assert (cache.states.dtype, cache.keys.dtype) == (torch.float32, torch.bfloat16)
    for name, parameter in rough.named_parameters():
        precise = name.endswith(("A_log", "dt_bias", ".D", "e_score_correction_bias"))
        assert parameter.dtype == (torch.float32 if precise else torch.bfloat16), name
    fine = logits_in_pieces(ask.engine.model, ids, (len(ids) - 3,))
    apart = logits_in_pieces(rough, ids, (len(ids) - 3,)) - fine
    assert 0 < apart.norm() < 0.15 * fine.norm(), "experts may be chosen otherwise, but not more"


@pytest.mark.parametrize(("kind", "variant"), CASES)
def test_nothing_strays_from_the_models_device(
    monkeypatch: pytest.MonkeyPatch, kind: str, variant: dict[str, Any]
) -> None:
    """On the meta device, which mixes with no other: what a GPU would refuse is refused here."""
    monkeypatch.setattr(Experts, "forward", lambda self, x, *_: self.run(x, 0))  # it counts tokens on the host
    architecture = architectures()[kind]
    with torch.device("meta"):
        model = architecture.build(text_config(kind, {"vocab_size": 8} | architecture.TINY | variant))
        ids = torch.zeros(20, dtype=torch.int64)
    cache = SequenceCache.empty(model.cache_spec(), 21)
    trace = Trace(want_kv=True, want_entering=(1,), want_transition=(1,))
    batch = PrefillBatch([Sequence(cache, (Active(3), Active(17)), ids, trace)])
    assert model.logits(model.forward(batch)).shape == (20, 8)
    batch.finish()
    step = DecodeBatch(ids[:1], [cache])
    assert model.logits(model.forward(step)).device.type == "meta"
    assert model.move_states(cache.states, 7).device.type == "meta"
    model.rotate_keys(cache.keys[:, :20], batch.positions, cache.keys[:, :20])


@pytest.mark.parametrize("kind", KINDS)
def test_full_generates_what_the_reference_does(asker: MakeAsker, kind: str) -> None:
    ask = asker(kind)
    segments = ask.prompt(1, 2, 3)
    ids = ids_of(segments)[None]
    settings = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    with torch.inference_mode():
        expected = load_reference(kind, ask.path).generate(ids, attention_mask=torch.ones_like(ids), **settings)
    assert ask.tokens(ask.request(segments, "full")) == expected[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("arm", REUSING)
@pytest.mark.parametrize("kind", KINDS)
def test_hit_equals_miss(asker: MakeAsker, kind: str, arm: str) -> None:
    """Warm, cold and met elsewhere first: the same numbers, to rounding, and not those of another arm."""
    ask = asker(kind)
    segments = ask.prompt(1, 2, 3)
    cold, _ = ask.combine(ask.request(segments, arm, salt=f"a{arm}"))
    ask.combine(ask.request(ask.prompt(3, 1, 4, 2), arm, salt=f"b{arm}"))
    request = ask.request(segments, arm, salt=f"b{arm}")
    assert all(row.source != "build" for row in ask.engine.plan(request).rows)
    warm, _ = ask.combine(request)
    assert gap(warm, cold) <= 1e-4
    full, _ = ask.combine(ask.request(segments, "full"))
    assert torch.isfinite(warm).all()
    assert gap(warm, full) > 1e-4, "reuse that changes nothing in a deep model did not happen"


@pytest.mark.parametrize("kind", KINDS)
def test_exact_prefix_and_all_active_equal_full(asker: MakeAsker, kind: str) -> None:
    ask = asker(kind)
    segments = ask.prompt(1, 2, 3)
    full, _ = ask.combine(ask.request(segments, "full"))
    ask.tokens(ask.request(segments, "prefix", salt="p"))
    again = ask.request(segments, "prefix", salt="p")
    assert ask.engine.plan(again).cached_tokens == again.prompt_tokens - 9
    assert gap(ask.combine(again)[0], full) <= 1e-4
    wide = replace(ARMS["hypic"], seam_tokens=500)
    assert gap(ask.combine(ask.request(segments, wide))[0], full) <= 1e-4, "a seam over the whole segment"
    anchored = ask.prompt(1)
    expected, _ = ask.combine(ask.request(anchored, "full"))
    assert gap(ask.combine(ask.request(anchored, "anchored"))[0], expected) <= 1e-4, "built where it stands"


@pytest.mark.parametrize(("kind", "variant"), CASES)
def test_first_layer_composes_exactly_wherever_segments_stand(
    asker: MakeAsker, kind: str, variant: dict[str, Any]
) -> None:
    ask = asker(kind, **variant)
    segments = ask.prompt(1, 2, 3, 2)
    tokens, memories = len(ids_of(segments)), {}
    for arm in ("full", "hypic", "anchored", "addition", "last_state"):
        ask.combine(ask.request(ask.prompt(3, 2, 1, leading=0), arm, salt="elsewhere"))
        memories[arm] = ask.combine(ask.request(segments, arm, salt="elsewhere"))[1]
    kinds, full = ask.engine.model.layer_kinds, memories["full"]
    if kinds[0] == "full" or (kinds[:2] == ("linear", "full") and kind == "falcon_h1"):
        assert gap(memories["hypic"].keys[0, :tokens], full.keys[0, :tokens]) <= 1e-5
        assert gap(memories["hypic"].values[0, :tokens], full.values[0, :tokens]) <= 1e-5
    if kinds[0] == "linear":
        scale = float(full.states[0].abs().max())
        gaps = {arm: gap(memory.states[0], full.states[0]) / scale for arm, memory in memories.items()}
        assert max(gaps["hypic"], gaps["anchored"]) <= 2e-5, gaps
        assert min(gaps["addition"], gaps["last_state"]) > 100 * gaps["hypic"] > 0, gaps


@pytest.mark.parametrize("offset", [1, 4_000, 150_000])
@pytest.mark.parametrize(("kind", "variant"), [("bailing_moe_linear", {}), ("bailing_hybrid", RING_2_5)])
@torch.inference_mode()
def test_states_with_rotated_keys_move_far(asker: MakeAsker, kind: str, variant: dict[str, Any], offset: int) -> None:
    """What a segment leaves at position 0, moved, is what it leaves `offset` tokens further on."""
    model = asker(kind, **variant).engine.model
    ids, states = torch.arange(70), []
    for start in (0, offset):
        cache = SequenceCache.empty(model.cache_spec(), start + len(ids))
        cache.keys.zero_(), cache.values.zero_()
        cache.tokens = start
        model.forward(PrefillBatch([Sequence(cache, (Active(len(ids)),), ids)]))
        states.append(cache.states)
    moved, recomputed = model.move_states(states[0], offset)[0], states[1][0]
    assert gap(moved, recomputed) <= 2e-5 * float(recomputed.abs().max())
    assert gap(states[0][0], recomputed) > 0.1 * float(recomputed.abs().max())


@pytest.mark.parametrize("kind", sorted(ONE_LAYER))
def test_one_layer_is_exact_to_the_logits(asker: MakeAsker, kind: str) -> None:
    ask = asker(kind, **ONE_LAYER[kind])
    segments = ask.prompt(1, 2, 3, 2)
    full, _ = ask.combine(ask.request(segments, "full"))
    ask.combine(ask.request(ask.prompt(3, 2, 1), "hypic"))
    assert gap(ask.combine(ask.request(segments, "hypic"))[0], full) <= 1e-4
    if "linear" in ask.engine.model.layer_kinds:
        assert gap(ask.combine(ask.request(segments, "last_state"))[0], full) > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_entries_travel_bit_for_bit(asker: MakeAsker, kind: str) -> None:
    ask = asker(kind)
    request = ask.request(ask.prompt(1, 2), "hypic", salt="travel")
    tasks = ask.engine.submit(request)
    ask.engine.abort(request.request_id)
    spec = ask.engine.model.cache_spec()
    for entry in ask.engine.build(list(tasks)):
        other = decode_entry(encode_entry(entry))
        assert entry.operators.tensors["states.values"].dtype == torch.float32
        assert entry.conv_tails.shape[1:] == (spec.conv_width - 1, spec.conv_channels)
        assert entry.keys.shape[0] == spec.attention_layers
        for name, tensor in entry.tensors.items():
            assert torch.equal(tensor, other.tensors[name]), name


@pytest.mark.parametrize("kind", KINDS)
def test_company_changes_nothing(asker: MakeAsker, kind: str) -> None:
    """Four requests decoded together answer as each does alone: no state leaks into a neighbour."""
    ask = asker(kind)
    prompts = [ask.prompt(n, n + 1) for n in range(1, 5)]
    alone = [ask.tokens(ask.request(prompt, "hypic", salt="alone")) for prompt in prompts]
    assert len({tuple(tokens) for tokens in alone}) > 2, "prompts that answer alike test nothing"
    requests = [ask.request(prompt, "hypic", salt="together") for prompt in prompts]
    for request in requests:
        ask.engine.build_here(task.key for task in ask.engine.submit(request))
    outputs: dict[str, list[int | None]] = {request.request_id: [] for request in requests}
    while not ask.engine.idle:
        for output in ask.engine.step():
            outputs[output.request_id].append(output.token_id)
    assert [outputs[request.request_id] for request in requests] == alone


@pytest.mark.parametrize("arm", ["full", "hypic"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_in_chunks_leaves_the_same_memory(asker: MakeAsker, kind: str, arm: str) -> None:
    """13 tokens at a time end within seams, before operators and within sections."""
    ask = asker(kind)
    request = ask.request(ask.prompt(1, 2), arm, salt="chunks")
    for entry in ask.engine.build(list(ask.engine.submit(request))):
        ask.engine.deliver(entry)
    found = []
    with torch.inference_mode():
        for most in (4096, 13):
            sequence = ask.engine.composer.sequence(ask.engine._waiting[request.request_id])
            sequence = replace(sequence, trace=Trace(want_entering=(1, 2)))
            prefill = Prefill(ask.engine.model, sequence, most)
            while (logits := prefill.step()) is None:
                assert prefill.left_tokens > 0
            memory = sequence.cache
            entering = [tensor for piece in (1, 2) for tensor in sequence.trace.entering(piece, memory)]
            written = [tensor[:, : memory.tokens] for tensor in (memory.keys, memory.values)]
            found.append([logits, memory.states, memory.conv_tails, *written, *entering])
    ask.engine.abort(request.request_id)
    for whole, chunks in zip(*found, strict=True):
        scale = max(1.0, float(whole.abs().max())) if whole.numel() else 1.0
        torch.testing.assert_close(chunks, whole, atol=1e-4 * scale, rtol=0)


@pytest.mark.parametrize(("kind", "name", "value"), REFUSED)
def test_what_is_not_served_is_refused_by_name(kind: str, name: str, value: object) -> None:
    architecture = architectures()[kind]
    fields = architecture.TINY | {name: value}
    with pytest.raises(UnsupportedModelError, match=rf"{kind} with {name} = .* is not served"):
        architecture.build(text_config(kind, fields))


def test_rotated_keys_need_transitions_that_commute() -> None:
    """A matrix T does not commute with the rotation, so such a segment could not stand anywhere else."""
    config = text_config("qwen3_5", architectures()["qwen3_5"].TINY)
    shape = DeltaNetShape(config.hidden_size, 2, 4, 16, 24, 4, 1e-6)
    layer = DecoderLayer(GatedDeltaNet(0, shape), nn.Identity(), nn.Identity)
    with pytest.raises(UnsupportedModelError, match="does not commute"):
        CausalLM(config, [layer], nn.Identity(), Positions(linear=RotaryPositions(config)))
