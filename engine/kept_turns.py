"""Turns of a conversation: a stream that ends leaves its pages to one that goes on from it.

What was generated lies in pages like a prompt does. Where a model keeps turns, full pages of both
are offered under the keys of their content (`engine.kv_pages`): a later stream whose prompt begins
with the same rows finds them, and prefills what is new alone. Whether it does is not known here;
pages that nobody asks for are the first to go when pages are short. Engine thread.
"""

from __future__ import annotations

from dataclasses import replace

from engine.batch import Indices
from engine.groups import StreamGroup, fed_rows, prompt_keys
from engine.kv_pages import PrefixCache
from engine.runner import Runner


def keep_turn(group: StreamGroup, pages: PrefixCache, runner: Runner) -> Indices | None:
    """Offer the pages of a stream that has ended soundly, and give its rows `(T, K)`.

    None where the model keeps no turns. Waits for the device, where nothing may be under way for
    the stream. The last row, which ended it, was never fed: it is not among them.
    """
    if not runner.spec.keeps_turns:
        return None
    plan, table = group.plan, group.stream.sequences[0]
    said = group.prompts[0].followed_by(*fed_rows(group, runner))
    whole = replace(plan, prefix_rows=said.n_rows)
    for place, key in enumerate(prompt_keys(whole, said, said.n_rows, pages.page_size)):
        pages.insert(key, table.pages[place])
    return said.ids
