"""Vision transformers: frozen trunk, last block, and the class token's row of that block's attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partgcd.backbone.known import SUPPORTED
from partgcd.backbone.layers import BlockOut, Family, final_norm_of
from partgcd.backbone.rows import Rows
from partgcd.config.errors import UserError


class VitLayers(nn.Module):
    """A timm VisionTransformer cut before its last block. Input of ``trunk``: normalised pixels [B, 3, S, S].

    Tokens [B, T, D] carry the prefix (class token, then registers) and P patches, T = prefix + P.
    """

    picks_rows = True

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model: Any = model
        self.prefix = int(model.num_prefix_tokens)
        self.grid: tuple[int, int] = tuple(model.patch_embed.grid_size)
        self.dim = self.trunk_dim = int(model.embed_dim)

    # Properties, not attributes: a module registered twice would be in the state dict twice.
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
        model = self.model
        x: Tensor = model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(pixels))))
        for block in model.blocks[:-1]:
            x = block(x)
        return x

    def frozen_patches(self, tokens: Tensor) -> Tensor:
        """Patch rows of ``tokens``, [B, P, D]."""
        return tokens[:, self.prefix :]

    def block(self, tokens: Tensor) -> BlockOut:
        """Last block and final norm on all rows."""
        block, attn = self.last, self.last.attn
        y = _cast(block.norm1(tokens))
        q, k, v = self._heads(attn.qkv(y), 3)
        q, k = attn.q_norm(q), attn.k_norm(k)
        mixed = _attend(q, k, v, attn.scale)
        # Fused attention keeps its weights to itself; the one row needed costs next to nothing beside it.
        row = _softmax_rows(q[:, :, :1] * attn.scale, k)
        x = self._close(tokens, y, mixed)
        return BlockOut(x[:, 0], x[:, self.prefix :], self._patch_attention(row))

    def class_token(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Class token [B, D] and attention [B, P] of ``block``, without computing any patch row."""
        block, attn = self.last, self.last.attn
        dim = attn.qkv.weight.shape[1]
        y = _cast(block.norm1(tokens))
        weight = attn.qkv.weight.view(3, attn.num_heads, -1, dim)  # [3, H, d, D]
        bias = None if attn.qkv.bias is None else attn.qkv.bias.view(3, attn.num_heads, -1)  # [3, H, d]
        q = torch.einsum("bc,hdc->bhd", y[:, 0], weight[0])
        q = attn.q_norm(q if bias is None else q + bias[0])
        if isinstance(attn.k_norm, nn.Identity):
            # softmax_t(q . (W_k y_t + b_k)) = softmax_t((q W_k) . y_t): b_k is the same for all t. One
            # product per head replaces the key projection of all tokens.
            scores = torch.einsum("bhd,hdc->bhc", q, weight[1]) * attn.scale @ y.transpose(1, 2)
        else:
            k = torch.einsum("btc,hdc->bhtd", y, weight[1])
            k = attn.k_norm(k if bias is None else k + bias[1][:, None])
            scores = ((q * attn.scale)[:, :, None] @ k.transpose(-2, -1))[:, :, 0]
        row = scores.float().softmax(dim=-1)  # [B, H, T]
        # sum_t a_t (W_v y_t + b_v) = W_v (sum_t a_t y_t) + b_v, because the weights sum to one.
        pooled = row.to(y.dtype) @ y
        mixed = torch.einsum("bhc,hdc->bhd", pooled, weight[2])
        mixed = mixed if bias is None else mixed + bias[2]
        x = self._close(tokens[:, :1], y[:, :1], mixed[:, :, None])
        return x[:, 0], self._patch_attention(row[:, :, None])

    def patches_at(self, tokens: Tensor, rows: Rows) -> Tensor:
        """Patches [B, R, D] of ``block`` at ``rows`` alone: all tokens are keys and values, few are queries."""
        block, attn = self.last, self.last.attn
        dim = attn.qkv.weight.shape[1]
        y = _cast(block.norm1(tokens))
        bias = attn.qkv.bias
        query, rest = attn.qkv.weight.split([dim, 2 * dim])
        query_bias, rest_bias = (None, None) if bias is None else bias.split([dim, 2 * dim])
        k, v = self._heads(F.linear(y, rest, rest_bias), 2)
        image, at = rows.image, rows.patch + self.prefix
        normed = y[image, at][:, None]  # [M, 1, D]: M rows of all images, without the gaps of [B, R]
        (q,) = self._heads(F.linear(normed, query, query_bias), 1)  # [M, H, 1, d]
        q, k = attn.q_norm(q), attn.k_norm(k)
        wide = _attend(rows.spread(q[:, :, 0]).transpose(1, 2), k, v, attn.scale)  # [B, H, R, d]
        mixed = wide.transpose(1, 2)[image, rows.place][:, :, None]
        found = self._close(tokens[image, at][:, None], normed, mixed)
        return rows.spread(found[:, 0])

    def _heads(self, projected: Tensor, parts: int) -> tuple[Tensor, ...]:
        batch, rows, width = projected.shape
        heads = self.last.attn.num_heads
        shaped = projected.reshape(batch, rows, parts, heads, width // (parts * heads))
        return shaped.permute(2, 0, 3, 1, 4).unbind(0)

    def _close(self, tokens: Tensor, normed: Tensor, mixed: Tensor) -> Tensor:
        """What follows the attention of ``mixed`` [B, H, R, d] for the R rows ``tokens`` [B, R, D]."""
        block, attn = self.last, self.last.attn
        joined = attn.norm(mixed.transpose(1, 2).flatten(2))
        gate = getattr(attn, "gate", None)
        if gate is not None:
            joined = joined * gate(normed).sigmoid()
        x = tokens + block.ls1(attn.proj(joined))
        x = x + block.ls2(block.mlp(block.norm2(x)))
        out: Tensor = self.final_norm(x)
        return out

    def _patch_attention(self, row: Tensor) -> Tensor:
        return row[:, :, 0, self.prefix :].mean(dim=1)


def check_vit(model: Any, name: str) -> None:
    """Raise UserError unless ``model`` is a VisionTransformer that ``VitLayers`` computes exactly."""
    from timm.layers.attention import Attention
    from timm.models.vision_transformer import Block, VisionTransformer

    if not isinstance(model, VisionTransformer) or type(model.blocks[-1]) is not Block:
        raise UserError(f"{name} is a transformer with blocks of its own kind: supported are {SUPPORTED}")
    if type(model.blocks[-1].attn) is not Attention:
        raise UserError(f"{name} has attention of its own kind in its blocks: supported are {SUPPORTED}")
    if not model.has_class_token:
        raise UserError(f"{name} has no class token: supported are {SUPPORTED}")


def check_image_size(patch: int, image_size: int, name: str) -> None:
    """Raise UserError, naming the nearest sizes, unless ``image_size`` is a multiple of ``patch`` pixels."""
    if image_size % patch:
        below = max(image_size // patch, 1) * patch
        raise UserError(
            f"image size {image_size} is not a multiple of the {patch} px patches of {name}: "
            f"use {below} or {below + patch}"
        )


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Attention of q [B, H, R, d] over k, v [B, H, T, d], by the way that is fastest where it runs."""
    if q.device.type == "cpu" and q.dtype == torch.bfloat16:
        # torch's fused CPU kernel does not use bfloat16 matrix units; two plain products do.
        weights = ((q * scale) @ k.transpose(-2, -1)).softmax(dim=-1)
        return weights.to(v.dtype) @ v
    return F.scaled_dot_product_attention(q, k, v, scale=scale)


def _cast(values: Tensor) -> Tensor:
    """``values`` in autocast's type: what several products read is rounded once instead of for each."""
    kind = values.device.type
    return values.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else values


def _softmax_rows(query: Tensor, keys: Tensor) -> Tensor:
    """softmax over T of query [B, H, 1, d] . keys [B, H or 1, T, d], float32 under autocast too."""
    return (query @ keys.transpose(-2, -1)).float().softmax(dim=-1)


FAMILY = Family("vit", lambda model, image_size: VitLayers(model), check_vit)
