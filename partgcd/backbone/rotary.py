"""Vision transformers with rotary positions: EVA-02 and DINOv3, which timm has in one class."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partgcd.backbone.known import SUPPORTED
from partgcd.backbone.layers import BlockOut, Family, final_norm_of
from partgcd.backbone.rows import Rows
from partgcd.config.errors import UserError


class RotaryLayers(nn.Module):
    """A timm Eva cut before its last block. Tokens [B, T, D] carry a prefix and P patches, as `VitLayers` has."""

    picks_rows = False
    _rope: Tensor | None

    def __init__(self, model: Any, image_size: int) -> None:
        super().__init__()
        self.model: Any = model
        self.prefix = int(model.num_prefix_tokens)
        self.grid: tuple[int, int] = tuple(model.patch_embed.grid_size)
        self.dim = self.trunk_dim = int(model.embed_dim)
        with torch.no_grad():
            _, rope = self._embedded(torch.zeros(1, 3, image_size, image_size))
        # The last block's own rotation depends on the grid alone.
        self.register_buffer("_rope", self._of_block(rope, -1), persistent=False)

    @property
    def last(self) -> Any:
        """The trainable block."""
        return self.model.blocks[-1]

    @property
    def final_norm(self) -> Any:
        """The norm after the last block."""
        return final_norm_of(self.model)

    def trunk(self, pixels: Tensor) -> Tensor:
        """Input of the last block, [B, T, D]."""
        embedded, rope = self._embedded(pixels)
        x: Tensor = self.model.norm_pre(embedded)
        for number, block in enumerate(self.model.blocks[:-1]):
            x = block(x, rope=self._of_block(rope, number))
        return x

    def frozen_patches(self, tokens: Tensor) -> Tensor:
        """Patch rows of ``tokens``, [B, P, D]."""
        return tokens[:, self.prefix :]

    def block(self, tokens: Tensor) -> BlockOut:
        """Last block and final norm on all rows."""
        block, attn = self.last, self.last.attn
        y = block.norm1(tokens)
        q, k, v = self._turned(y)
        mixed = F.scaled_dot_product_attention(q, k, v, scale=attn.scale).transpose(1, 2).flatten(2)
        mixed = attn.norm(mixed)
        if attn.gate is not None:
            mixed = mixed * attn.gate(y).sigmoid()
        x = tokens + _scaled(block.gamma_1, attn.proj(mixed))
        x = self.final_norm(x + _scaled(block.gamma_2, block.mlp(block.norm2(x))))
        row = ((q[:, :, :1] * attn.scale) @ k.transpose(-2, -1)).float().softmax(dim=-1)
        return BlockOut(x[:, 0], x[:, self.prefix :], row[:, :, 0, self.prefix :].mean(dim=1))

    def class_token(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Class token [B, D] and attention [B, P] of ``block``, which computes all rows."""
        out = self.block(tokens)
        return out.cls, out.attention

    def patches_at(self, tokens: Tensor, rows: Rows) -> Tensor:
        """Not to be had."""
        raise ValueError("a transformer with rotary positions can't compute single patches here")

    def _embedded(self, pixels: Tensor) -> tuple[Tensor, Tensor | None]:
        x, rope = self.model._pos_embed(self.model.patch_embed(pixels))
        return x, rope

    def _of_block(self, rope: Tensor | None, number: int) -> Tensor | None:
        """The rotation of one block: some models have their own in each."""
        return rope[number] if rope is not None and getattr(self.model, "rope_mixed", False) else rope

    def _turned(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, H, T, d] of normalised rows, the patches' turned by their place."""
        from timm.layers.pos_embed_sincos import apply_rot_embed_cat

        attn = self.last.attn
        if attn.qkv is not None:
            bias = None if attn.q_bias is None else torch.cat([attn.q_bias, attn.k_bias, attn.v_bias])
            joined = attn.qkv(y) if bias is None else F.linear(y, attn.qkv.weight, bias)
            q, k, v = joined.unflatten(2, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        else:
            q, k, v = (
                each(y).unflatten(2, (attn.num_heads, -1)).transpose(1, 2)
                for each in (attn.q_proj, attn.k_proj, attn.v_proj)
            )
        q, k = attn.q_norm(q), attn.k_norm(k)
        if self._rope is None:
            return q, k, v
        first, half = self.prefix, bool(getattr(attn, "rotate_half", False))
        q, k = (
            torch.cat(
                [each[:, :, :first], apply_rot_embed_cat(each[:, :, first:], self._rope, half=half)], dim=2
            )
            for each in (q, k)
        )
        return q.type_as(v), k.type_as(v), v


def _scaled(gamma: Tensor | None, values: Tensor) -> Tensor:
    return values if gamma is None else gamma * values


def check_rotary(model: Any, name: str) -> None:
    """Raise UserError unless ``model`` is an Eva that `RotaryLayers` computes exactly."""
    from timm.models.eva import Eva, EvaAttention, EvaBlock

    if not isinstance(model, Eva) or type(model.blocks[-1]) is not EvaBlock:
        raise UserError(f"{name} is a transformer with blocks of its own kind: supported are {SUPPORTED}")
    attention: Any = type(model.blocks[-1].attn)
    if attention is not EvaAttention:
        raise UserError(f"{name} has attention of its own kind in its blocks: supported are {SUPPORTED}")
    if model.cls_token is None:
        raise UserError(f"{name} has no class token: supported are {SUPPORTED}")


FAMILY = Family("vit", RotaryLayers, check_rotary)
