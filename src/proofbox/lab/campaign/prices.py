"""Prices of models, as a campaign states them. No price is built in: without one, a cost is unknown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from proofbox.agents.events import TokenUsage

PER: Final = 1_000_000
"""Prices are for a million tokens, as providers list them."""

_Price = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The price of a model, for a million tokens."""

    model: Annotated[str, msgspec.Meta(min_length=1)]
    """The model as a flow's runner names it; the flow's id, if its runner names no model."""
    input: _Price
    """Input tokens that were not read from a cache."""
    output: _Price
    """Output tokens, including reasoning."""
    cached_input: _Price | None = None
    """Input tokens that were read from a cache. None: the same as other input."""

    def cost(self, usage: TokenUsage) -> float:
        """Return the cost of these tokens."""
        cached = min(usage.cached_input_tokens, usage.input_tokens)
        rate = self.input if self.cached_input is None else self.cached_input
        fresh = usage.input_tokens - cached
        return (fresh * self.input + cached * rate + usage.output_tokens * self.output) / PER


def price_of(model: str | None, flow: str, prices: Sequence[Price]) -> Price | None:
    """Return the price that applies to a flow; None if it is unknown."""
    return next((each for each in prices if each.model == (model or flow)), None)
