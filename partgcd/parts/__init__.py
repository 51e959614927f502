"""Part mixtures and what is computed with them."""
