"""Stream groups: slot, KV pages and prompts of each open stream, from opening to closing.

A *stream group* is one stream with its one or two KV sequences: its own rows and, while a guided
phase lasts, those of its guidance companion. Both share a slot, a sampler and a fate. Memory for
the worst case is taken at admission, so a running stream never waits for a page. One that gives way
gives back all of it, both sequences at once, and comes back by the same door. Engine thread.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from engine.admission import Demand
from engine.batch import Indices, Prompt
from engine.config import EngineConfig
from engine.errors import StreamError
from engine.kv_pages import PageAllocator, PageTable, PrefixCache, n_pages_for, prefix_keys
from engine.runner import KeptSlot, Runner
from engine.sizes import most_rows, pool_pages
from engine.slots import SlotTable
from engine.stream import Stream
from engine.text_output import TextOutput
from engine.types import OpenStream
from models.base import PromptPlan
from models.spec import ModelSpec

COMPANION = 1
"""Index of the companion in a group's sequences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a stream that gave way goes on from: its slot's tensors, and its companion's rows."""

    slot: KeptSlot
    companion: Prompt | None


@dataclass(slots=True, kw_only=True)
class StreamGroup:
    """What the engine keeps of one open stream beside the policy's record.

    Args:
        stream: the policy's record.
        plan: the prompt and its settings.
        seed: of the random draws.
        max_rows: most rows that may be generated.
        prompts: what each sequence starts from.
        keys: content keys of the shareable pages of each sequence.
        is_ever_guided: some phase will need a companion.
        companion: the prompt of a companion that has rows of its own.
        n_before_companion: generated rows that were fed before the present companion was made.
        kept: while it has given way: what it goes on from.
        spare: pages set aside for a companion that does not exist now.
        new_text: streamed text ids that the device does not hold yet.
        n_text: streamed text ids so far.
        is_text_final: no more will come.
        text: its text output, where it has one.
        is_prompt_shared: its prefix pages were offered to others.
        is_queue_told: its caller knows that it waits.
    """

    stream: Stream
    plan: PromptPlan
    seed: int
    max_rows: int
    prompts: list[Prompt]
    is_ever_guided: bool
    companion: Prompt | None = None
    n_before_companion: int = 0
    kept: Kept | None = None
    keys: list[list[bytes]] = field(default_factory=list)
    spare: PageTable = field(default_factory=PageTable)
    new_text: list[int] = field(default_factory=list)
    n_text: int = 0
    is_text_final: bool = True
    text: TextOutput = field(default_factory=TextOutput)
    is_prompt_shared: bool = False
    is_queue_told: bool = False

    @property
    def n_fed(self) -> int:
        """Generated rows that the sequences hold: the last one is fed by the next step."""
        return max(self.stream.n_rows - 1, 0)


class Groups:
    """Memory of all admitted streams: slots, pages, shared prefixes.

    Args:
        spec: facts of the model.
        config: sizes.
        runner: told about slots and pages as they change hands.
    """

    def __init__(self, spec: ModelSpec, config: EngineConfig, runner: Runner) -> None:
        self._spec = spec
        self._runner = runner
        self._page_size = config.page_size
        self._held_s = config.held_s
        self.slots = SlotTable(config.max_streams)
        self.allocator = PageAllocator(pool_pages(spec, config), config.page_size)
        self.pages = PrefixCache(self.allocator)
        phases = spec.guidance.phases if spec.guidance else ()
        self._guided_phases = frozenset(spec.phase_idx(name) for name in phases)

    def make(self, command: OpenStream) -> StreamGroup:
        """The group of a new stream, without memory yet. Raises: `StreamError`."""
        plan, spec = command.plan, self._spec
        check_plan(spec, plan)
        is_guided = self._is_guided(plan)
        prompt = Prompt.of(plan)
        stream = Stream(
            stream_id=command.stream_id,
            asked_s=command.asked_s,
            play_from_s=command.play_from_s,
            is_paced=command.is_paced,
            wants_pcm=command.wants_pcm,
            held_s=self._held_s,
            max_frames=plan.max_frames,
            n_prompt_rows=[prompt.n_rows],
            phase_idx=int(plan.state[0]),
        )
        return StreamGroup(
            stream=stream,
            plan=plan,
            seed=command.seed,
            max_rows=most_rows(spec, plan),
            prompts=[prompt],
            is_ever_guided=is_guided,
            companion=None if plan.companion is None else Prompt.of(plan.companion),
            n_text=0 if plan.text_ids is None else len(plan.text_ids),
            is_text_final=plan.is_text_final,
        )

    def demand(self, group: StreamGroup) -> Demand:
        """What the group needs, for admission."""
        stream, is_back = group.stream, group.kept is not None
        prompts = [group.prompts[0]]
        if self._has_companion_first(group):
            prompts.append(self._companion_prompt(group))
        return Demand(
            stream_id=stream.stream_id,
            asked_s=stream.asked_s,
            n_prompt_rows=sum(prompt.n_rows for prompt in prompts),
            n_pages=sum(n_pages_for(n, self._page_size) for n in self._worst_rows(group)),
            n_step_rows=2 if group.is_ever_guided else 1,
            is_continuation=stream.is_paced if is_back else stream.play_from_s is not None,
            is_awaited=stream.is_paced,
            is_back=is_back,
        )

    def admit(self, group: StreamGroup) -> None:
        """Give the group its slot and pages; admission has found that they are there.

        A group that gave way goes on from where it was, once its rows have been run again.

        Raises:
            StreamError: the plan's settings cannot be kept. Nothing is taken then.
        """
        slot = self.slots.allocate()
        assert slot is not None, "admission counts free slots"
        try:
            self._runner.open_slot(slot, group.plan, group.seed)
        except StreamError:
            self.slots.free(slot)
            raise
        group.stream.slot = slot
        if group.kept is not None:
            self._runner.put_back(slot, group.kept.slot)
        if not group.stream.is_generation_done:
            self._give_pages(group)
        group.kept = None

    def give_way(self, group: StreamGroup) -> None:
        """Take slot and pages back, of both sequences; `admit` lets the group go on later.

        Nothing of it may be under way on the device.
        """
        stream, runner = group.stream, self._runner
        rows, phases = fed_rows(group, runner)
        group.prompts[0] = group.prompts[0].followed_by(rows, phases)
        companion = None
        if len(group.prompts) > 1:
            n_before = group.n_before_companion
            companion = group.prompts[COMPANION].followed_by(rows[n_before:], phases[n_before:])
        group.kept = Kept(slot=runner.take_out(stream.slot), companion=companion)
        # A prompt that is not complete has not proved sound.
        self.close(group, is_suspect=True)
        del group.prompts[1:], group.keys[:]
        stream.n_prompt_rows = [group.prompts[0].n_rows]
        stream.n_prefilled = [0]
        stream.sequences = [PageTable()]
        stream.is_guided = False
        group.is_prompt_shared = False

    def n_pages_alone(self, group: StreamGroup) -> int:
        """Pages that would be free without it."""
        tables = [*group.stream.sequences, group.spare]
        return self.pages.n_free_after(page for table in tables for page in table.pages)

    def changes_guidance(self, before: int, after: int) -> bool:
        """Whether a guided stream makes or drops its companion between these phases."""
        return (before in self._guided_phases) != (after in self._guided_phases)

    def update_guidance(self, group: StreamGroup) -> None:
        """Make or drop the companion, as the stream's present phase asks."""
        stream = group.stream
        is_wanted = group.is_ever_guided and stream.phase_idx in self._guided_phases
        if is_wanted and len(stream.sequences) == 1:
            self._add_companion(group)
        if not is_wanted and stream.is_guided:
            self._drop_companion(group)
        stream.is_guided = is_wanted

    def share_prompts(self, group: StreamGroup) -> None:
        """Offer the filled prefix pages of a group to others, once its rows proved sound."""
        group.is_prompt_shared = True
        for idx, (keys, table) in enumerate(zip(group.keys, group.stream.sequences, strict=True)):
            known = self.pages.match(keys)
            self.pages.release(known)
            new = range(len(known), len(keys))
            for place in new:
                # NOTE: a page in the cache is never written again, and a companion may have to
                # come back: what it gives away is replaced, or it is not given away.
                if idx == COMPANION and not self._replace_spare(group):
                    break
                self.pages.insert(keys[place], table.pages[place])

    def close(self, group: StreamGroup, *, is_suspect: bool) -> None:
        """Free slot and pages. `is_suspect`: zero the pages first, they may hold NaN."""
        stream = group.stream
        tables = [*stream.sequences, group.spare]
        if is_suspect:
            own = [p for t in tables for p in t.pages if self.allocator.n_refs(p) == 1]
            self._runner.scrub(own)
        for table in tables:
            table.release(self.pages)
        self.slots.free(stream.slot)
        stream.slot = -1

    def check(self) -> None:
        """Assert that no slot or page is lost."""
        self.slots.check()
        self.allocator.check()
        self.pages.check()

    def _is_guided(self, plan: PromptPlan) -> bool:
        """The plan asks for guidance in some phase."""
        guidance = self._spec.guidance
        if guidance is None:
            return False
        scale = guidance.scale if plan.guidance_scale is None else plan.guidance_scale
        has_prompt = guidance.companion == "zero_rows" or plan.companion is not None
        return scale != 1 and has_prompt

    def _give_pages(self, group: StreamGroup) -> None:
        """Pages for the worst case, bound to the sequences that there are now."""
        worst, stream = self._worst_rows(group), group.stream
        self._start_sequence(group, 0)
        is_reserved = stream.sequences[0].reserve(worst[0], self.pages)
        if group.is_ever_guided:
            is_reserved &= group.spare.reserve(worst[COMPANION], self.pages)
        assert is_reserved, "admission counts free pages"
        self._bind(group, 0)
        if self._has_companion_first(group):
            self._add_companion(group)
        self.update_guidance(group)

    def _has_companion_first(self, group: StreamGroup) -> bool:
        """It has a companion from its admission on."""
        if group.kept is not None:
            return group.kept.companion is not None
        guidance = self._spec.guidance
        if guidance is None or not group.is_ever_guided:
            return False
        return guidance.entry == "start" or int(group.plan.state[0]) in self._guided_phases

    def _companion_prompt(self, group: StreamGroup) -> Prompt:
        """Own rows, or as many zero rows as the stream has positions; after a while away, both."""
        if group.kept is not None and group.kept.companion is not None:
            return group.kept.companion
        if group.companion is not None:
            return group.companion
        return Prompt.zeros(group.prompts[0].n_given + group.n_fed, self._spec.n_columns)

    def _worst_rows(self, group: StreamGroup) -> list[int]:
        """Most KV rows that the stream and, if it is ever guided, its companion will need."""
        if group.stream.is_generation_done:
            return []
        n_own = group.prompts[0].n_given + group.max_rows
        if not group.is_ever_guided:
            return [n_own]
        if group.plan.companion is None:
            return [n_own, n_own]
        return [n_own, len(group.plan.companion.ids) + group.max_rows]

    def _add_companion(self, group: StreamGroup) -> None:
        stream = group.stream
        prompt = self._companion_prompt(group)
        if group.kept is None:
            group.n_before_companion = group.n_fed
        group.prompts.append(prompt)
        stream.n_prompt_rows.append(prompt.n_rows)
        stream.n_prefilled.append(0)
        stream.sequences.append(PageTable())
        self._start_sequence(group, COMPANION)
        group.is_prompt_shared = False
        # What sharing saves stays spare: the stream may come to guided phases again.
        table = stream.sequences[COMPANION]
        n_own = len(group.spare.pages) - len(table.pages)
        table.pages += group.spare.pages[:n_own]
        group.spare.pages = group.spare.pages[n_own:]
        self._bind(group, COMPANION)

    def _drop_companion(self, group: StreamGroup) -> None:
        stream = group.stream
        pages = stream.sequences.pop().pages
        is_own = [self.allocator.n_refs(page) == 1 for page in pages]
        group.spare.pages += itertools.compress(pages, is_own)
        self.pages.release(itertools.compress(pages, [not own for own in is_own]))
        for per_sequence in (group.prompts, group.keys, stream.n_prompt_rows, stream.n_prefilled):
            per_sequence.pop()

    def _replace_spare(self, group: StreamGroup) -> bool:
        pages = self.pages.allocate(1)
        group.spare.pages += pages or []
        return pages is not None

    def _start_sequence(self, group: StreamGroup, idx: int) -> None:
        """Adopt the pages of the prompt's prefix that others have filled."""
        plan = group.plan if idx == 0 else group.plan.companion
        prompt, table = group.prompts[idx], group.stream.sequences[idx]
        # The last row of a first prompt gives logits and must be run.
        n_most = prompt.n_given - (group.stream.n_rows == 0)
        keys = prompt_keys(plan, prompt, n_most, self._page_size)
        group.keys.append(keys)
        table.adopt(self.pages.match(keys), self._page_size)
        group.stream.n_prefilled[idx] = table.n_rows

    def _bind(self, group: StreamGroup, idx: int) -> None:
        pages = group.stream.sequences[idx].pages
        self._runner.bind(group.stream.slot, idx, group.prompts[idx], pages)


def fed_rows(group: StreamGroup, runner: Runner) -> tuple[Indices, Indices]:
    """Generated rows `(R, K)` that the stream was fed, and their phases. Waits for the device."""
    first = group.prompts[0].next_position
    return runner.fed_rows(group.stream.slot, slice(first, first + group.n_fed))


def check_plan(spec: ModelSpec, plan: PromptPlan) -> None:
    """Refuse a plan whose shapes do not fit the spec. Raises: `StreamError` `model_error`."""
    n_text = 0 if plan.text_ids is None else len(plan.text_ids)
    n_rows = plan.ids.shape[0]
    shapes = {part.name: part.shape for part in spec.codec.state}
    wrong = [
        name
        for name, is_right in (
            ("ids", plan.ids.dim() == 2 and n_rows >= 1 and plan.ids.shape[1] == spec.n_columns),
            ("state", plan.state.shape == (spec.state_size,)),
            ("positions", plan.positions is None or plan.positions.shape == (n_rows,)),
            ("embeds", plan.embeds is None or plan.embeds.shape == (n_rows, spec.backbone.hidden)),
            ("embed_mask", plan.embed_mask is None or plan.embed_mask.shape == (n_rows,)),
            ("text_ids", n_text <= spec.text_capacity),
            ("max_frames", plan.max_frames >= 1),
            ("codec_state", all(shapes.get(n) == t.shape for n, t in plan.codec_state.items())),
        )
        if not is_right
    ]
    if wrong:
        raise StreamError("model_error", f"the model's plan has wrong {', '.join(wrong)}")
    if plan.companion is not None:
        check_plan(spec, plan.companion)


def prompt_keys(
    plan: PromptPlan | None, prompt: Prompt, n_most: int, page_size: int
) -> list[bytes]:
    """Content keys of the full pages that may be shared, within the first `n_most` rows.

    A zero prompt (no plan) is the same for every stream and may be shared whole.
    """
    name, n_rows = "zeros", n_most
    if plan is not None:
        name = f"plan/{plan.prefix_key}"
        n_rows = 0 if plan.prefix_key is None else min(plan.prefix_rows, n_most)
    if n_rows < page_size:
        return []
    return prefix_keys(
        prompt.ids,
        None if prompt.embeds is None else prompt.embeds.detach().float().cpu().numpy(),
        prompt.embed_mask,
        prompt.positions,
        prefix_key=name,
        n_rows=n_rows,
        page_size=page_size,
    )
